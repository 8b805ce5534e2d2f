"""LangGraph's checkpoints, kept by the orchestrator.

The readable fields of the state are written beside LangGraph's own checkpoint, which goes into `state.runner`. One call
stores both together with the effects of the node, under the lease.
"""

import base64

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from contract import READABLE, Refused


def entry(drive):
    """What the graph is invoked with: nothing where LangGraph's own checkpoint is the last, else the readable state.

    It is not the last at the beginning, after a person steered the run, and after another runner drove it.
    """
    kept, at = drive.state["runner"], drive.position
    if isinstance(kept, dict) and kept.get("langgraph") == [at["sequence"], drive.next_node]:
        return None
    return {field: drive.state[field] for field in READABLE} | {"next": drive.next_node}


class Saver(BaseCheckpointSaver):
    """The saver of one drive. The thread is the task."""

    def __init__(self, drive):
        super().__init__()
        self.drive = drive

    def get_tuple(self, config):
        """`resume`: the last checkpoint that LangGraph made of the task. Older ones are not kept."""
        task_id, wanted = config["configurable"]["thread_id"], config["configurable"].get("checkpoint_id")
        try:
            found = self.drive.client.post("/v1/workflow/resume", {"task_id": task_id})
        except Refused as refusal:
            if refusal.status == 404:
                return None
            raise
        kept = found["position"]["state"]["runner"]
        if not isinstance(kept, dict) or "langgraph" not in kept:
            return None
        checkpoint, metadata = self.serde.loads_typed((kept["serde"], base64.b64decode(kept["checkpoint"])))
        if wanted not in (None, checkpoint["id"]):
            return None
        return CheckpointTuple(of(task_id, checkpoint), checkpoint, metadata)

    def list(self, config, *, filter=None, before=None, limit=None):
        """The last checkpoint is the only one that is kept whole; the task's timeline tells the history."""
        if (found := self.get_tuple(config)) is not None:
            yield found

    def put(self, config, checkpoint, metadata, new_versions):
        """`checkpoint`: after each node, and before the next one begins."""
        stored = of(config["configurable"]["thread_id"], checkpoint)
        if metadata["source"] not in ("input", "loop"):
            raise NotImplementedError("only nodes change a run")
        # No node ran, the graph was only entered: with what the orchestrator has already.
        if "step" not in new_versions:
            return stored
        drive, values = self.drive, checkpoint["channel_values"]
        reached = [drive.position["sequence"] + 1, values["next"]]
        serde, data = self.serde.dumps_typed((checkpoint, metadata))
        kept = {"langgraph": reached, "serde": serde, "checkpoint": base64.b64encode(data).decode()}
        drive.store(values["step"], {field: values[field] for field in READABLE} | {"runner": kept})
        # The orchestrator owns the graph. When it says anything but what LangGraph would do next (wait, stop, plan
        # again), this invocation ends here.
        if [drive.position["sequence"], drive.next_node] != reached:
            drive.control.request_drain("the orchestrator says otherwise")
        return stored

    def put_writes(self, config, writes, task_id, task_path=""):
        """Nothing: a super-step is one node, and a node that is not checkpointed has not happened."""


def of(task_id, checkpoint):
    """The configuration that names a checkpoint."""
    return {"configurable": {"thread_id": task_id, "checkpoint_ns": "", "checkpoint_id": checkpoint["id"]}}
