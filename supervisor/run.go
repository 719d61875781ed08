package supervisor

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentguard/agentguard/bpf"
	"github.com/agentguard/agentguard/internal/cgroup"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/policy"
	initproc "github.com/agentguard/agentguard/supervisor/init"
	"github.com/agentguard/agentguard/trace"
)

// Config is one command to run.
type Config struct {
	Policy  *policy.Policy // merged and bounded: nothing is added to it here
	Argv    []string       // program and arguments; at least one
	Environ []string       // the caller's environment, from which the policy picks

	// The caller's streams; the command never holds them. With Stdin nil it reads end of
	// file, and with the others nil its output is in the record alone. A read of Stdin may
	// still be under way when Execute returns: what comes then is nobody's.
	Stdin, Stdout, Stderr *os.File

	Caller      *Caller           // on whose behalf it runs; nil: [CurrentCaller]'s
	Rlimits     []Rlimit          // the caller's, where it is not this process: the command gets no more
	Started     func(id string)   // is told that the command runs; nil: nobody asks
	Suspend     func() error      // waits while the caller is stopped by Ctrl-Z; nil: this process is stopped, with its group
	ActionFiles []string          // files of actions with the policy's brokers, besides those of ActionsDir; they must be approved
	Continue    *Staged           // what this run begins with; nil: nothing
	TTY         string            // TTYAuto ("" too), TTYAlways or TTYNever: a terminal of its own for the command
	StateDir    string            // "" is the default of the user
	SealFile    string            // the administrator's anchor.Config; "": none
	Slow        func(step string) // told once what a start of more than a second is at; nil: nobody asks
	Signals     <-chan os.Signal  // forwarded to the command; nil: none

	// Events is told the record while the command runs; nil: nobody asks. It is
	// called for each record in its order, the start first and the summary last, one
	// call at a time, by a goroutine of its own. The event is the one that package
	// trace reads from the record later; its slices are valid during the call.
	//
	// What is told is in the record and stays there: an event comes up to a second
	// after it happened, and those of a shorter run when the command has ended.
	// The record on disk is the queue. Events that takes its time, or
	// blocks, stalls neither the command nor its record, and misses nothing; Execute
	// returns after the last call. Of a run that could not start nothing is told.
	Events func(*trace.Event)

	Log zerolog.Logger // the operational log, never the record

	roomBytes int // in it for execve, fork and exit; 0: all of it
	ringBytes int // of the sensor's ring; 0 is its default; tests have small ones
}

// Run is a command made ready: everything is decided, nothing has started.
type Run struct {
	cfg     Config
	caller  Caller
	host    *Host
	grants  *grants
	brokers []Broker
	state   *runs.State
	uid     *uidSlot
	plan    *Plan
	filter  []byte
	release releases

	id         string
	dir        *runs.RunDir
	files      map[string]*os.File
	stdio      *stdio
	streams    ttyStreams
	tty        *tty          // the run's own terminal; nil: it has none
	stops      chan struct{} // the command was stopped
	freezer    freezer
	begins     func()   // the start is over: nobody is told any more that it takes long
	lock       *os.File // tells other starts that we live
	leaf       *cgroup.Leaf
	views      map[string]*os.File // the leaf's directories, shown inside
	materials  materials
	unmapped   []string            // copy-on-write grants shown without mapped ids
	uppers     map[string]*os.File // of the cow entries, by layer: what the command changed
	born       *lane               // of the steps up to birth; nil in a dry run
	sensor     *bpf.Run
	net        *network // nil: the run reaches nothing but its own loopback
	mono       uint64   // CLOCK_BOOTTIME and wall clock of the same instant before birth
	wall       time.Time
	proc       *initproc.Process
	calls      *initproc.Program // the command's
	rec        *recorder
	told       *events // nil: nobody listens
	sealer     *sealer
	code       *codeRecord // hashes what is executed; nil: there is no record that could tell it
	drained    sync.WaitGroup
	closing    sync.WaitGroup
	joined     bool         // PID 1 was moved into the cgroup: births into it die here
	stopSensor func() error // flushes, and waits until all is in the record
	planJSON   []byte
	boot       string       // the boot's id
	storePlan  func() error // waits for plan.json
	timing     timing
	kept       bool // the run's directory holds a record of a command
	leafStays  bool // the cgroup could not be removed
}

// runtimeDir and parentName are variables of a build, not of a run: tests of
// layers that are switched off use others, so that they share nothing.
func runtimeDir() string {
	if len(seams()) > 0 {
		return RuntimeDir + "-seam"
	}
	return RuntimeDir
}

// parentName is the parent cgroup of this build's runs: programs of another
// build, which may have live runs, are attached to another parent.
func parentName() string {
	if len(seams()) > 0 {
		return "seam-" + cgroup.DefaultParent + "-" + bpf.Build()
	}
	return cgroup.DefaultParent + "-" + bpf.Build()
}

// order is a run from first to last. Each step pushes what it has to release,
// and any failure kills what was born and releases all of it.
//
// Birth needs nothing of the plan, and is mostly the kernel's work, so that two
// lists go on beside each other, and a third where there is an allowlist. All have
// ended before the envelope is put on: until then PID 2 waits for the list of calls
// that becomes of the plan.
type order struct {
	opening   []step
	probing   []step // beside planning, which waits for it in decide
	bearing   []step // after probing
	planning  []step
	dialling  []step // after planning, beside storing; only where there is an allowlist
	storing   []step // after planning
	enclosing []step // when all have ended
}

func (r *Run) order() order {
	return order{
		opening: []step{
			{"caller", r.who}, // whose authority bounds the run; agentguard's own directory
		},
		probing: []step{
			{"cgroups", r.probeCgroups},   // the layout, and the parent of all runs
			{"programs", r.probePrograms}, // pinned: they judge and observe all runs
		},
		bearing: []step{
			{"terminal", r.openTerminal}, // of an interactive run: its own
			{"cgroup", r.makeLeaf},       // a fresh leaf, limits written
			{"sensor", r.startSensor},    // everything born into the leaf is seen from here on
			{"birth", r.birth},           // PID 1 and PID 2 exist; PID 1 has given up its privileges
		},
		planning: []step{
			{"paths", r.openPaths},     // every granted path, with the caller's ids
			{"host", r.probe},          // what this host can enforce
			{"state", r.openState},     // where the record goes, out of reach of every grant
			{"user", r.identify},       // who the command runs as
			{"brokers", r.findBrokers}, // what the policy's brokers are
			{"plan", r.decide},         // the plan
		},
		dialling: []step{
			{"dialler", r.startDialler}, // the process that reaches what is allowed
			{"edge", r.loadEdge},        // the program that leads connections to it
		},
		storing: []step{
			{"record", r.openRecord},    // run directory, plan, trace, output copies
			{"mounts", r.makeMaterials}, // the view and the ruleset, attached to nothing yet
			{"calls", r.makeCalls},      // the list of calls of program.go, for PID 2
		},
		enclosing: []step{
			{"network", r.openNetwork},   // where there is an allowlist: the holes in the wall
			{"continue", r.continueFrom}, // where another run is continued: its staged changes
			{"envelope", r.envelope},     // the calls are made: every layer, canary, execve
			{"running", r.startRelays},   // output flows, signals are forwarded
			{"events", r.startEvents},    // the record is told while it is written
		},
	}
}

// Execute runs a command and returns its result, when it has ended and its record
// is sealed. A cancelled context ends the run: SIGTERM, and SIGKILL after Grace; that
// is a result too, with ReasonError. The error is a *Refusal where policy, host
// or command are at fault, with an exit status by StatusOf; nothing has run then.
func Execute(ctx context.Context, cfg Config) (*Result, error) {
	r, started := newRun(cfg), time.Now()
	slowMonitor(launchSlack)
	defer slowMonitor(defaultSlack) // of a process that goes on
	growStack()
	r.begins = r.timing.tellSlow(cfg.Slow)
	o := r.order()
	err := r.steps(o.opening)
	if err == nil {
		r.born = r.beside(slices.Concat(o.probing, o.bearing))
		err = r.born.join(r.prepare(o))
	}
	if err == nil {
		err = r.steps(o.enclosing)
	}
	if err != nil {
		return nil, r.fail(err)
	}
	if cfg.Started != nil {
		cfg.Started(r.id)
	}
	end := r.watch(ctx)
	r.timing.mark("command")
	return r.finish(started, end)
}

// prepare takes the steps that the birth does not need.
func (r *Run) prepare(o order) error {
	if err := r.steps(o.planning); err != nil {
		return err
	}
	if r.plan.Egress == nil {
		return r.steps(o.storing)
	}
	dialling := r.beside(o.dialling)
	return dialling.join(r.steps(o.storing))
}

// Prepare decides everything about a run and changes nothing but agentguard's
// own directories: a dry run. The caller must call Close.
func Prepare(cfg Config) (*Run, error) {
	r := newRun(cfg)
	o := r.order()
	if err := r.steps(slices.Concat(o.opening, o.probing, o.planning)); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func newRun(cfg Config) *Run {
	r := &Run{cfg: cfg, told: newEvents(cfg.Events), files: map[string]*os.File{}, views: map[string]*os.File{}, stops: make(chan struct{}, 1), begins: func() {}}
	r.timing.start()
	return r
}

// Plan is what the run will do.
func (r *Run) Plan() *Plan { return r.plan }

// Close releases everything; it may be called at any point and twice. What was
// born dies first: nothing is given back that it may still use.
func (r *Run) Close() error { return errors.Join(r.killAll(), r.release.run()) }

// fail ends a run that could not start: whatever was born dies here, and the
// run's directory, which holds no record of a command, goes.
func (r *Run) fail(err error) error {
	r.begins()
	r.cfg.Log.Error().Err(err).Msg("the run could not start")
	why := r.explain(err) // while the granted paths are still open: it looks below them
	if cerr := r.Close(); cerr != nil {
		r.cfg.Log.Error().Err(cerr).Msg("clean-up")
	}
	return why
}
