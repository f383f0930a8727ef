// A chat with the components of CopilotKit, over AG-UI. The hash of the address is the thread.

import { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client";
import { CopilotChat, CopilotKitProvider, useDefaultRenderTool, useInterrupt } from "@copilotkit/react-core/v2";
import { useState } from "react";
import { createRoot } from "react-dom/client";
import "@copilotkit/react-core/v2/styles.css";

/** Shows each tool use that waits for a decision. The decisions are sent when all of them are made. */
function Approvals({ interrupts, resolve }) {
  const [decided, setDecided] = useState([]);
  const decide = (id, decision) => {
    setDecided([...decided, id]);
    resolve(decision, id);
  };
  return interrupts.filter(({ id }) => !decided.includes(id)).map(({ id, message, metadata }) => (
    <div key={id} className="tool" data-waits="true">
      <b>{metadata?.tool}</b> {JSON.stringify(metadata?.input)}: {message}
      <button onClick={() => decide(id, { approved: true })}>Approve</button>
      <button onClick={() => decide(id, { approved: false, reason: "not now" })}>Reject</button>
    </div>
  ));
}

/** An agent that CopilotKit asks for the messages of the thread, and for the rest of a run, after a reload. */
class StoredThread extends HttpAgent {
  connect({ threadId }) {
    // A thread without messages does not exist yet.
    const stored = () => fetch(`${this.url}/${threadId}`).then((it) => (it.status === 404 ? new Response() : it));
    return transformHttpEventStream(runHttpRequest(stored));
  }
}

function Chat() {
  const [error, setError] = useState();
  useInterrupt({ render: (props) => <Approvals {...props} /> });
  useDefaultRenderTool();
  return (
    <>
      {error && <p role="alert">{error.message}</p>}
      <CopilotChat threadId={threadId} onError={({ error }) => setError(error)} />
    </>
  );
}

location.hash ||= crypto.randomUUID();
const threadId = location.hash.slice(1);
const agent = new StoredThread({ url: "/ag-ui", threadId });
createRoot(document.querySelector("#root")).render(
  <CopilotKitProvider agents__unsafe_dev_only={{ default: agent }}><Chat /></CopilotKitProvider>,
);
