// A chat with the components of assistant-ui, over its runtime for the AI SDK. The hash of the address is the id of the
// chat.

import { useChat } from "@ai-sdk/react";
import {
  ActionBarPrimitive,
  AssistantRuntimeProvider,
  BranchPickerPrimitive,
  ComposerPrimitive,
  ErrorPrimitive,
  MessagePrimitive,
  ThreadPrimitive,
} from "@assistant-ui/react";
import { useAISDKRuntime } from "@assistant-ui/react-ai-sdk";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { useMemo } from "react";
import { createRoot } from "react-dom/client";
import "../style.css";

function Tool({ toolName, args, result, isError, approval, respondToApproval }) {
  const waits = approval && approval.approved === undefined && result === undefined;
  return (
    <div className="tool" data-waits={Boolean(waits)}>
      <b>{toolName}</b> {JSON.stringify(args)}
      {waits && (
        <div className="actions">
          <button onClick={() => respondToApproval({ approved: true })}>Approve</button>
          <button onClick={() => respondToApproval({ approved: false, reason: "not now" })}>Reject</button>
        </div>
      )}
      {result !== undefined && <div role={isError ? "alert" : undefined}>{JSON.stringify(result)}</div>}
    </div>
  );
}

const Text = ({ text }) => <div className="text">{text}</div>;
const Reasoning = ({ text }) => <div className="reasoning">{text}</div>;
const parts = { Text, Reasoning, tools: { Fallback: Tool } };

const Picker = () => (
  <BranchPickerPrimitive.Root hideWhenSingleBranch className="actions">
    <BranchPickerPrimitive.Previous>Back</BranchPickerPrimitive.Previous>
    <span className="picker"><BranchPickerPrimitive.Number />/<BranchPickerPrimitive.Count /></span>
    <BranchPickerPrimitive.Next>On</BranchPickerPrimitive.Next>
  </BranchPickerPrimitive.Root>
);

const UserMessage = () => (
  <MessagePrimitive.Root render={<article className="user" />}>
    <MessagePrimitive.Parts components={parts} />
    <ActionBarPrimitive.Root className="actions"><ActionBarPrimitive.Edit>Edit</ActionBarPrimitive.Edit></ActionBarPrimitive.Root>
    <Picker />
  </MessagePrimitive.Root>
);

const EditComposer = () => (
  <ComposerPrimitive.Root>
    <ComposerPrimitive.Input aria-label="edited message" />
    <ComposerPrimitive.Send>Save</ComposerPrimitive.Send>
    <ComposerPrimitive.Cancel>Cancel</ComposerPrimitive.Cancel>
  </ComposerPrimitive.Root>
);

const AssistantMessage = () => (
  <MessagePrimitive.Root render={<article className="assistant" />}>
    <MessagePrimitive.Parts components={parts} />
    <MessagePrimitive.Error>
      <ErrorPrimitive.Root><ErrorPrimitive.Message /></ErrorPrimitive.Root>
    </MessagePrimitive.Error>
    <ActionBarPrimitive.Root className="actions" hideWhenRunning>
      <ActionBarPrimitive.Reload>Again</ActionBarPrimitive.Reload>
    </ActionBarPrimitive.Root>
    <Picker />
  </MessagePrimitive.Root>
);

function Chat({ id, messages }) {
  const sendAutomaticallyWhen = lastAssistantMessageIsCompleteWithApprovalResponses;
  // An edit sends only the messages before the edited one, so an edit of the first message sends no other message.
  const transport = useMemo(() => new DefaultChatTransport({ body: { whole: true } }), []);
  const chat = useChat({ id, messages, transport, resume: true, sendAutomaticallyWhen });
  const runtime = useAISDKRuntime(chat);
  return (
    <AssistantRuntimeProvider runtime={runtime}>
      <ThreadPrimitive.Root render={<main />}>
        <ThreadPrimitive.Messages components={{ UserMessage, EditComposer, AssistantMessage }} />
        <ComposerPrimitive.Root>
          <ComposerPrimitive.Input aria-label="message" />
          <ThreadPrimitive.If running={false}><ComposerPrimitive.Send>Send</ComposerPrimitive.Send></ThreadPrimitive.If>
          <ThreadPrimitive.If running><ComposerPrimitive.Cancel>Stop</ComposerPrimitive.Cancel></ThreadPrimitive.If>
        </ComposerPrimitive.Root>
      </ThreadPrimitive.Root>
    </AssistantRuntimeProvider>
  );
}

location.hash ||= crypto.randomUUID();
const id = location.hash.slice(1);
const response = await fetch(`/api/chat/${id}/messages`);
createRoot(document.querySelector("#root")).render(<Chat id={id} messages={await response.json()} />);
