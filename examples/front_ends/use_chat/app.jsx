// A chat with `useChat` of the AI SDK. The hash of the address is the id of the chat.

import { useChat } from "@ai-sdk/react";
import { getToolName, isToolUIPart, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { useEffect, useRef, useState } from "react";
import { createRoot } from "react-dom/client";
import "../style.css";

function Tool({ part, decide }) {
  const { approval } = part;
  return (
    <div className="tool" data-state={part.state}>
      <b>{getToolName(part)}</b> {JSON.stringify(part.input)}
      {part.state === "approval-requested" && (
        <div className="actions">
          <button onClick={() => decide({ id: approval.id, approved: true })}>Approve</button>
          <button onClick={() => decide({ id: approval.id, approved: false, reason: "not now" })}>Reject</button>
        </div>
      )}
      {part.state === "output-available" && <div>{JSON.stringify(part.output)}</div>}
      {part.state === "output-error" && <div role="alert">{part.errorText}</div>}
      {part.state === "output-denied" && <div>rejected: {approval?.reason}</div>}
    </div>
  );
}

function Part({ part, decide }) {
  if (part.type === "text") return <div className="text">{part.text}</div>;
  if (part.type === "reasoning") return <div className="reasoning">{part.text}</div>;
  if (isToolUIPart(part)) return <Tool part={part} decide={decide} />;
  if (part.type === "file" && part.mediaType.startsWith("image/")) return <img src={part.url} alt={part.filename ?? ""} />;
}

const load = async (id, signal) => (await fetch(`/api/chat/${id}/messages`, { signal })).json();

function Chat({ id, messages }) {
  const chat = useChat({
    id,
    messages,
    resume: true,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  // After a lost connection, the client finds nothing to resume if the run has ended meanwhile.
  const hasFailed = useRef(false);
  useEffect(() => {
    const isStale = hasFailed.current && chat.status === "ready";
    hasFailed.current = chat.status === "error";
    if (!isStale) return;
    const leaving = new AbortController();
    load(id, leaving.signal).then(chat.setMessages).catch(() => {});
    return () => leaving.abort();
  }, [chat.status]);
  const [text, setText] = useState("");
  // The message that is edited. Its new text takes its place, and begins another branch.
  const [edited, setEdited] = useState();
  const isActive = chat.status === "submitted" || chat.status === "streaming";
  const send = (event) => {
    event.preventDefault();
    chat.sendMessage({ text, messageId: edited });
    setText("");
    setEdited(undefined);
  };
  const edit = (message) => {
    setEdited(message.id);
    setText(message.parts.filter((part) => part.type === "text").map((part) => part.text).join(""));
  };
  return (
    <main data-status={chat.status}>
      {chat.messages.map((message) => (
        <article key={message.id} className={message.role}>
          {message.parts.map((part, index) => <Part key={index} part={part} decide={chat.addToolApprovalResponse} />)}
          <div className="actions">
            {message.role === "user" && <button onClick={() => edit(message)}>Edit</button>}
            {message.role === "assistant" && !isActive && (
              <button onClick={() => chat.regenerate({ messageId: message.id })}>Again</button>
            )}
          </div>
        </article>
      ))}
      {chat.error && <p role="alert">{chat.error.message}</p>}
      <form onSubmit={send}>
        <textarea value={text} onChange={(event) => setText(event.target.value)} aria-label="message" />
        <button disabled={!text.trim()}>Send</button>
        {isActive && <button type="button" onClick={chat.stop}>Stop</button>}
      </form>
    </main>
  );
}

location.hash ||= crypto.randomUUID();
const id = location.hash.slice(1);
createRoot(document.querySelector("#root")).render(<Chat id={id} messages={await load(id)} />);
