package supervisor

import (
	"context"
	"errors"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
)

// Grace is how long a command may take to end after SIGTERM before it is killed.
const Grace = 2 * time.Second

// flushEvery bounds how much of the record a killed supervisor takes with it.
const flushEvery = 100 * time.Millisecond

// watch waits for the end of the run: the command's own, or one of the limits
// that need a supervisor (wall clock, cpu, and memory on v1), or a signal.
func (r *Run) watch(ctx context.Context) exited {
	w := watcher{r: r, ended: make(chan exited, 1), begun: time.Now(), grace: Grace, asked: map[unix.Signal]int{}}
	go func() {
		exit, err := r.proc.Wait()
		w.ended <- exited{exit: exit, err: err}
	}()
	oom := w.watchMemory()
	if oom != nil {
		defer oom()
	}
	defer w.lastLook()
	return w.loop(ctx)
}

type watcher struct {
	r      *Run
	ended  chan exited
	oom    chan struct{}
	begun  time.Time
	grace  time.Duration       // Grace, but for tests
	reason string              // why the run is being ended
	asked  map[unix.Signal]int // signals that ask to end, by how often they came
	kill   <-chan time.Time

	settled bool
}

func (w *watcher) loop(ctx context.Context) exited {
	var wall <-chan time.Time
	if n := w.r.plan.Limits.Wall; n >= 0 {
		wall = time.After(time.Duration(n))
	}
	var looked <-chan looked
	cpu, output, loss, look := w.nextCPU(), w.nextCount(), w.nextLoss(), w.nextLook()
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	for {
		select {
		case e := <-w.ended:
			if e.reason = w.reason; e.reason == "" && e.killed() && w.r.leaf.OOMKills() > 0 {
				e.reason = runs.ReasonMemory // v2: memory.oom.group took PID 1 too; v1: the command itself was chosen
			}
			e.after = time.Since(w.begun)
			return e
		case <-wall:
			w.end(runs.ReasonWall, w.grace)
		case <-cpu:
			if w.overCPU() {
				w.end(runs.ReasonCPU, 0)
			}
			cpu = w.nextCPU()
		case <-look:
			look, looked = nil, w.startLook()
		case got := <-looked:
			w.judge(got)
			look, looked = w.nextLook(), nil
		case <-output:
			if w.overOutput() {
				w.end(runs.ReasonOutput, 0)
			}
			output = w.nextCount()
		case <-loss:
			if w.r.lossy() {
				w.end(runs.ReasonLoss, 0)
			}
			loss = w.nextLoss()
		case <-w.oom:
			if w.r.leaf.OOMKills() > 0 {
				w.end(runs.ReasonMemory, 0)
			}
		case <-flush.C:
			w.settle()
			if err := w.r.rec.w.Flush(); err != nil {
				w.r.cfg.Log.Error().Err(err).Msg("record")
			}
		case sig := <-w.r.cfg.Signals:
			w.forward(sig)
		case <-w.r.stops:
			w.suspend()
		case <-ctx.Done():
			w.end(runs.ReasonError, w.grace)
			ctx = context.Background()
		case <-w.kill:
			w.hangup()
		}
	}
}

// suspend stops us together with a command that was stopped on its terminal, as a
// shell expects of a job. The run is frozen meanwhile: nobody keeps its limits.
func (w *watcher) suspend() {
	if w.r.tty == nil || w.reason != "" || w.kill != nil {
		return
	}
	err := w.r.freezer.set(freezeStop, true)
	if err == nil {
		err = errors.Join(w.r.tty.suspend(w.r.stdio.terminal()), w.r.freezer.set(freezeStop, false))
	}
	if err != nil {
		w.r.cfg.Log.Error().Err(err).Msg("stopping with the command")
	}
	w.r.signalCommand(unix.SIGCONT)
}

// settle ends what was for the launch only, once the run has lasted. The monitor
// stays slow where it has less to do: with a second place for goroutines, who
// waits for one held by a system call is not every execve that is hashed.
func (w *watcher) settle() {
	if w.settled {
		return
	}
	w.settled = true
	if runtime.GOMAXPROCS(0) == 1 {
		slowMonitor(defaultSlack)
	}
}

// end asks the command to end and kills the run when the grace is over.
func (w *watcher) end(reason string, grace time.Duration) {
	if w.reason == "" {
		w.reason = reason
	}
	if grace == 0 {
		w.hangup()
		return
	}
	w.r.signalCommand(unix.SIGTERM)
	if w.kill == nil {
		w.kill = time.After(grace)
	}
}

// hangup closes the lifeline: PID 1 leaves, and the kernel kills the rest.
func (w *watcher) hangup() {
	if err := w.r.proc.Hangup(); err != nil {
		w.r.cfg.Log.Error().Err(err).Msg("lifeline")
	}
	if w.r.leaf == nil {
		if err := w.r.proc.Kill(); err != nil {
			w.r.cfg.Log.Error().Err(err).Msg("kill")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	if err := w.r.leaf.Kill(ctx); err != nil {
		w.r.cfg.Log.Error().Err(err).Msg("kill")
	}
}

// forward passes a signal on. SIGTERM and SIGHUP start a grace period; the
// second of any kind that asks to end ends the run.
func (w *watcher) forward(s os.Signal) {
	sig, ok := s.(unix.Signal)
	if !ok {
		return
	}
	w.r.signalCommand(sig)
	switch sig {
	case unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT:
		if w.asked[sig]++; w.asked[sig] > 1 {
			w.hangup()
		} else if w.kill == nil && sig != unix.SIGINT && sig != unix.SIGQUIT { // an interactive program may want to survive Ctrl-C
			w.kill = time.After(5 * Grace)
		}
	}
}

// nextCPU is when the cpu limit can be met at the earliest: all CPUs busy from now on.
func (w *watcher) nextCPU() <-chan time.Time {
	n := w.r.plan.Limits.CPU
	if n < 0 || w.reason != "" || w.r.leaf == nil {
		return nil
	}
	user, system, err := w.r.leaf.CPU()
	if err != nil {
		w.r.cfg.Log.Error().Err(err).Msg("cpu accounting")
	}
	left := time.Duration(n) - user - system
	return time.After(min(max(left/time.Duration(cpus()), 10*time.Millisecond), time.Minute))
}

func (w *watcher) overCPU() bool {
	user, system, err := w.r.leaf.CPU()
	return err == nil && user+system >= time.Duration(w.r.plan.Limits.CPU)
}

// countEvery is how often written bytes are compared with their limit, and
// lost records looked for.
const countEvery = 20 * time.Millisecond

// nextCount is when the bytes written to files are looked at again; nil: never.
func (w *watcher) nextCount() <-chan time.Time {
	if !w.r.plan.Limits.Counted || w.r.sensor == nil || w.reason != "" {
		return nil
	}
	return time.After(countEvery)
}

func (w *watcher) overOutput() bool {
	n, err := w.r.sensor.FileBytes()
	if err != nil {
		w.r.cfg.Log.Error().Err(err).Msg("output accounting")
	}
	return err == nil && int64(n) > w.r.plan.Limits.Output
}

// nextLoss is when lost records are looked for again; nil: never.
func (w *watcher) nextLoss() <-chan time.Time {
	if w.r.plan.OnLoss != "kill" || w.reason != "" {
		return nil
	}
	return time.After(countEvery)
}

// watchMemory starts the v1 out-of-memory watch and returns how to stop it.
func (w *watcher) watchMemory() func() {
	watch, err := w.r.leaf.WatchOOM()
	if err != nil {
		w.r.cfg.Log.Error().Err(err).Msg("out-of-memory watch")
	}
	if watch == nil {
		return nil
	}
	w.oom = make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for watch.Wait() == nil {
			select {
			case w.oom <- struct{}{}:
			default:
			}
		}
	}()
	return func() {
		if err := watch.Close(); err != nil {
			w.r.cfg.Log.Error().Err(err).Msg("out-of-memory watch")
		}
		<-done
	}
}
