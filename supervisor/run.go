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
	Rates       Rates             // bounds of the caller's cgroups, by [BoundByCgroup]
	Rlimits     []Rlimit          // the caller's, where it is not this process: the command gets no more
	Started     func(id string)   // is told that the command runs; nil: nobody asks
	Sealed      func(*Result)     // is told the result when nothing of the run lives and its record is sealed, before what it held is given back; nil: nobody asks
	Suspend     func() error      // waits while the caller is stopped by Ctrl-Z; nil: this process is stopped, with its group
	ActionFiles []string          // files of actions with the policy's brokers, besides those of ActionsDir; they must be approved
	Alone       bool              // the process is this run's: while the command runs it gives up the capabilities that the end does not take
	Lends       bool              // likewise, and they come back with the command's end: the process goes on
	Continue    *Staged           // what this run begins with; nil: nothing
	Reserve     *Reserve          // what was made ready before; nil: nothing. It is used or closed
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
	private    *private // of a run without mounts
	lost       []Gap    // what of the policy takes mounts, in such a run
	runtime    string   // what outlives a run on purpose, and locks
	lease      string   // names the lock and the leaves: the run's id, or that of the reserve it used
	ahead      bool     // its processes were born before anybody asked for it
	dir        *runs.RunDir
	files      map[string]*os.File
	stdio      *stdio
	streams    ttyStreams
	tty        *tty          // the run's own terminal; nil: it has none
	stops      chan struct{} // the command was stopped
	freezer    freezer
	meter      *meter   // of a run without a cgroup that counts for it; nil: it has one
	begins     func()   // the start is over: nobody is told any more that it takes long
	lock       *os.File // tells other starts that we live
	leaf       *cgroup.Leaf
	views      map[string]*os.File // the leaf's directories, shown inside
	materials  materials
	unmapped   []string            // copy-on-write grants shown without mapped ids
	uppers     map[string]*os.File // of the cow entries, by layer: what the command changed
	born       *lane               // of the steps up to birth; nil in a dry run
	sensor     *bpf.Run
	domain     *domain   // of a run without namespaces; nil: it has some, or the kernel has none (ABI 6)
	orphaned   bool      // its guardian was killed from outside
	left       bool      // and it is not known whether the rest has ended
	asked      *notifier // in a sensor's stead; nil: there is one, or nothing
	net        *network  // nil: the run reaches nothing but its own loopback
	mono       uint64    // CLOCK_BOOTTIME and wall clock of the same instant before birth
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
	privileges privileges
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
func parentName() string { return namedParent(bpf.Build()) }

// apartName is that of runs whose mount namespace does not show the pins of the first: its
// last digits are such as another build has, so that whoever sweeps knows it.
func apartName() string {
	own, _ := os.Readlink("/proc/self/ns/mnt") // without /proc: one parent for all such
	return namedParent(digest([]byte(bpf.Build() + own))[:len(bpf.Build())])
}

func namedParent(build string) string {
	if len(seams()) > 0 {
		return "seam-" + cgroup.DefaultParent + "-" + build
	}
	return cgroup.DefaultParent + "-" + build
}

// order is a run from first to last. Each step pushes what it has to release,
// and any failure kills what was born and releases all of it.
//
// Birth needs nothing of the plan, and is mostly the kernel's work, so that two
// lists go on beside each other, and a third where there is an allowlist. All have
// ended before the envelope is put on: until then PID 2 waits for the list of calls
// that becomes of the plan.
type order struct {
	reserving []step // before anybody asks for a run (reserve.go); using is then in the place of probing and bearing
	using     []step
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
		reserving: []step{
			{"host", r.look},
			{"cgroups", r.probeCgroups},
			{"programs", r.probePrograms},
			{"cgroup", r.makeLeaf},
			{"sensor", r.reserveSensor}, // what is born is seen; nobody else of the host pays for it
			{"birth", r.birth},
			{"rest", r.rest},
		},
		using: []step{
			{"birth", r.useProcesses}, // they live; their pipes are fitted
			{"cgroup", r.useLeaf},     // it is there; limits written
			{"sensor", r.useSensor},   // the programs are still those; from here on calls are seen
		},
		opening: []step{
			{"caller", r.who}, // whose authority bounds the run
			{"look", r.look},  // agentguard's own directory, the kernel, the mount table
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
			{"private", r.makePrivate}, // of a run without mounts: its home and temporary files
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
	r, started := cfg.reserved(), time.Now()
	slowMonitor(launchSlack)
	defer slowMonitor(defaultSlack) // of a process that goes on
	growStack()
	err := r.launch()
	defer cfg.Reserve.giveBack(cfg.Log)()
	if errors.Is(err, errStale) { // nothing has run
		r.cfg.Log.Debug().Err(err).Msg("started anew")
		if err = r.Close(); err == nil {
			r = newRun(cfg)
			err = r.launch()
		}
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

// launch takes all steps up to the command's first instruction.
func (r *Run) launch() error {
	r.begins = r.timing.tellSlow(r.cfg.Slow)
	o := r.order()
	if err := r.steps(o.opening); err != nil {
		return err
	}
	bearing := slices.Concat(o.probing, o.bearing)
	if r.ahead {
		bearing = o.using
	}
	r.born = r.beside(bearing)
	if err := r.born.join(r.prepare(o)); err != nil {
		return err
	}
	return r.steps(o.enclosing)
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
		return nil, errors.Join(byLimit(err), r.Close())
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
	r.raise()
	r.cfg.Log.Error().Err(err).Msg("the run could not start")
	why := byLimit(r.explain(err)) // while the granted paths are still open: it looks below them
	if cerr := r.Close(); cerr != nil {
		r.cfg.Log.Error().Err(cerr).Msg("clean-up")
	}
	return why
}
