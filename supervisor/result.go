package supervisor

import "github.com/agentguard/agentguard/internal/runs"

// Result is how a run ended: the exit status that agentguard ends with, why, what
// was used, what was refused, and where the record is. docs/json.md describes every
// field. Text in it may come from the command; its JSON method returns a form that
// is safe to print.
type Result = runs.Result

// Why a run ended: Result.Reason.
const (
	ReasonExit   = runs.ReasonExit   // the command ended by itself
	ReasonSignal = runs.ReasonSignal // a signal ended it: Result.Signal
	ReasonWall   = runs.ReasonWall   // process.max_wall_seconds
	ReasonCPU    = runs.ReasonCPU    // process.max_cpu_seconds
	ReasonMemory = runs.ReasonMemory // process.max_memory_mb
	ReasonOutput = runs.ReasonOutput // filesystem.max_output_bytes, where it is counted
	ReasonHidden = runs.ReasonHidden // a process hid what one of these counts
	ReasonLoss   = runs.ReasonLoss   // trace.on_loss: kill
	ReasonError  = runs.ReasonError  // the context was cancelled
)
