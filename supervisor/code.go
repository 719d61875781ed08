package supervisor

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/codewatch"
	"github.com/agentguard/agentguard/trace"
)

// What is executed is hashed while its execve waits: internal/codewatch holds
// it, codemounts.go says where, this file how the record tells it.

// codeKey is a version of a file in the record, or a text that was no file.
type codeKey struct {
	codewatch.ID
	ctime int64
	sum   string // of the text
}

// codeRecord tells what was executed. Its methods are called by the recorder;
// digests that come later are told from other goroutines.
type codeRecord struct {
	watch   *codewatch.Watch
	plan    *Plan
	w       *trace.Writer
	root    *os.File   // of the run, as its processes see it
	held    []*os.File // by which the run's mounts stay, until letGo
	missing string     // why programs are not held; "" when they are

	scripts map[uint32]string // by process: what an interpreter was told to read; the recorder's own

	mu    sync.Mutex
	asked map[codeKey]bool // of the watch
	told  map[codeKey]*codewatch.File
}

// maxTold bounds what is remembered; beyond, things may be told twice.
const maxTold = 1 << 16

// see looks at an event of the sensor that is about to be written.
func (c *codeRecord) see(e *trace.Event) {
	if c == nil || e.Phase != trace.PhaseCommand {
		return
	}
	switch e.Kind {
	case trace.KindExec:
		c.exec(e)
	case trace.KindExecFail:
		c.failed(e)
	case trace.KindExit:
		c.watch.Forget(e.Proc.Pid)
		delete(c.scripts, e.Proc.Pid)
	case trace.KindMmapExec:
		c.mapped(e)
	case trace.KindOpen:
		if !c.opened(e) {
			e.Ctime = 0 // of every open, it would be too much
		}
	}
}

func idOf(e *trace.Event) codewatch.ID {
	return codewatch.ID{Dev: unix.Mkdev(e.DevMajor, e.DevMinor), Ino: e.Ino}
}

// exec tells what this execve opened and gives the record of it the digest of
// the image that runs.
func (c *codeRecord) exec(e *trace.Event) {
	delete(c.scripts, e.Proc.Pid)
	id, held := idOf(e), false
	files := c.watch.Executed(e.Proc.Pid, e.Mono)
	if len(e.Script) > 0 {
		e.ScriptSHA256 = onlyScript(files)
	}
	for _, f := range files {
		c.tell(e, f)
		c.mutable(e, f)
		if f.ID == id {
			e.SHA256, e.HashState, held = f.SHA256, string(f.State), true
			if e.Ctime != f.Ctime { // changed since it was hashed: what runs is asked for below
				e.HashState, held = string(codewatch.Raced), false
			}
		}
	}
	if !held {
		c.ask(e, false)
	}
	c.interpreted(e)
}

// onlyScript is the digest of the one script among what an execve opened. Of two
// nothing says which it was: another thread may have begun an execve as well,
// which the one that was quicker has ended.
func onlyScript(files []*codewatch.File) string {
	var sum string
	found := 0
	for _, f := range files {
		if f.Script {
			sum = f.SHA256
			found++
		}
	}
	if found != 1 {
		return ""
	}
	return sum
}

// failed tells what a shell may now read by itself: a file without a format.
func (c *codeRecord) failed(e *trace.Event) {
	files := c.watch.Executed(e.Proc.Pid, e.Mono)
	if e.Errno == int32(unix.ENOEXEC) {
		for _, f := range files {
			c.tell(e, f)
		}
	}
}

// mapped asks for libraries, and for programs that a loader was given.
func (c *codeRecord) mapped(e *trace.Event) {
	if e.Verdict != trace.VerdictDeny && !e.Anon { // what the file holds is not what runs
		c.ask(e, false)
	}
}

// ask has a file hashed that gave no event, unless it was before. A process is
// asked for its image by itself when that has no name.
func (c *codeRecord) ask(e *trace.Event, keep bool) {
	key := codeKey{ID: idOf(e), ctime: e.Ctime}
	isExec := e.Kind == trace.KindExec
	if f := c.known(e, key); f != nil && (f.Stored || !keep) {
		if isExec {
			c.mutable(e, f)
		}
		return
	}
	if key.Ino == 0 || len(e.Path) == 0 || !keep && !c.first(key) { // what is asked for now may have been hashed and not kept
		return
	}
	about := remembered(e)
	r := codewatch.Request{
		ID: key.ID, Ctime: e.Ctime, PID: e.Proc.Pid, Parent: e.Proc.PPid, Keep: keep,
		Done: func(f *codewatch.File) {
			c.tell(&about, f)
			if isExec {
				c.mutable(&about, f)
			}
		},
	}
	h := holder(c.plan.View, string(about.Path))
	r.System = h != nil && h.system && !e.Memfd
	if isExec && (e.Memfd || e.Deleted || e.PathSource != trace.PathKernel || c.root == nil) {
		c.watch.Exe(r)
		return
	}
	c.watch.Path(c.root, string(about.Path), r)
	c.known(e, key) // by now, where it was not far to look
}

// remembered is a copy of what tell needs of an event: its slices are the recorder's.
func remembered(e *trace.Event) trace.Event {
	return trace.Event{Mono: e.Mono, Proc: e.Proc, Path: bytes.Clone(e.Path)}
}

// first notes that a version is asked for and reports whether it was not before.
func (c *codeRecord) first(key codeKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked[key] {
		return false
	}
	if len(c.asked) >= maxTold {
		clear(c.asked)
	}
	c.asked[key] = true
	return true
}

// missed reports whether a file was gone before it could be looked at.
func missed(f *codewatch.File) bool { return f.State == codewatch.Raced && f.SHA256 == "" }

// worse reports whether a digest that was told as what ran may be of other content by now.
func worse(had, f *codewatch.File) bool {
	return had.State == codewatch.OK && f.State == codewatch.Raced && !missed(f)
}

// known gives a record the digest of a version that was told before; nil when none was.
func (c *codeRecord) known(e *trace.Event, key codeKey) *codewatch.File {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.told[key]
	if f == nil || e.Ctime == 0 || missed(f) {
		return nil
	}
	e.SHA256, e.HashState = f.SHA256, string(f.State)
	return f
}

// interpreted looks at what an interpreter was told to run: text among the
// arguments is told now, a script when the process opens it.
func (c *codeRecord) interpreted(e *trace.Event) {
	given, ok := codewatch.Interpreted(string(e.Path), e.Argv)
	switch {
	case !ok:
	case given.Text > 0:
		c.tell(e, c.watch.Text(e.Argv[given.Text][given.Skip:]))
	case given.Input:
		about := remembered(e)
		c.watch.Input(codewatch.Request{PID: e.Proc.Pid, Keep: true, Done: func(f *codewatch.File) { c.tell(&about, f) }})
	case given.Script > 0 && len(c.scripts) < maxTold:
		c.scripts[e.Proc.Pid] = string(e.Argv[given.Script])
	}
}

// opened has a script stored when its interpreter opens it. The argument only
// says which open is meant; what is stored is the file that the kernel says was opened.
func (c *codeRecord) opened(e *trace.Event) bool {
	script, ok := c.scripts[e.Proc.Pid]
	if !ok || e.Verdict == trace.VerdictDeny || e.Errno != 0 || e.Access == "w" || !named(e, script) {
		return false
	}
	delete(c.scripts, e.Proc.Pid)
	c.ask(e, true)
	return true
}

// named reports whether an open is of what an argument names: as it was
// written, or by a path that ends so.
func named(e *trace.Event, arg string) bool {
	for _, p := range []string{string(e.PathGiven), string(e.Path)} {
		if p == arg || p != "" && strings.HasSuffix(p, "/"+strings.TrimPrefix(filepath.Clean(arg), "/")) {
			return true
		}
	}
	return false
}

// tell writes one version of a file into the record, once.
func (c *codeRecord) tell(about *trace.Event, f *codewatch.File) {
	key := codeKey{ID: f.ID, ctime: f.Ctime}
	if f.Ino == 0 {
		key.sum = f.SHA256
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if missed(f) {
		delete(c.asked, key) // the next process may live longer
	}
	if had := c.told[key]; had != nil && (had.Stored || !f.Stored) && !worse(had, f) && !(missed(had) && !missed(f)) {
		return
	}
	if len(c.told) >= maxTold {
		clear(c.told)
	}
	c.told[key] = f
	e := trace.Event{
		Kind: trace.KindCode, Phase: trace.PhaseCommand, Mono: about.Mono, Proc: about.Proc,
		Path: []byte(f.Path), Deleted: f.Gone, DevMajor: unix.Major(f.Dev), DevMinor: unix.Minor(f.Dev), Ino: f.Ino,
		Ctime: f.Ctime, Bytes: uint64(max(f.Size, 0)), SHA256: f.SHA256, HashState: string(f.State), Memfd: f.State == codewatch.Memfd,
	}
	if f.Path != "" {
		e.PathSource = trace.PathKernel
	}
	if f.Stored {
		e.Name = []byte(f.SHA256)
	}
	_ = c.w.Append(&e) // sticks, as for every event
}

// mutable tells of memory that an execve has made executable by itself: what a
// program writes there it can run, and no later call says so.
func (c *codeRecord) mutable(about *trace.Event, f *codewatch.File) {
	if !f.Mutable {
		return
	}
	_ = c.w.Append(&trace.Event{
		Kind: trace.KindMmapExec, Phase: trace.PhaseCommand, Mono: about.Mono, Proc: about.Proc, Anon: true,
		Path: []byte(f.Path), PathSource: trace.PathKernel, Deleted: f.Gone, Memfd: f.State == codewatch.Memfd,
		DevMajor: unix.Major(f.Dev), DevMinor: unix.Minor(f.Dev), Ino: f.Ino, Ctime: f.Ctime, Flags: unix.PROT_READ | unix.PROT_WRITE | unix.PROT_EXEC,
	})
}

// release lets go of the mounts of a run whose processes are dying. It comes
// before they are waited for, since stop is quick only some time after it.
func (c *codeRecord) release(log zerolog.Logger) {
	if c == nil {
		return
	}
	if err := c.watch.Release(); err != nil {
		log.Error().Err(err).Msg("code watch")
	}
}

// stop gives back what held the execves of a run that is dead.
func (c *codeRecord) stop(log zerolog.Logger) {
	if c == nil {
		return
	}
	if err := c.watch.Stop(); err != nil {
		log.Error().Err(err).Msg("code watch")
	}
}

// letGo gives back what only hashing needed, when that has ended. With the last of
// it goes the run's mount namespace, which takes the kernel a while. Twice is once.
func (c *codeRecord) letGo() error {
	if c == nil {
		return nil
	}
	err := c.watch.DropTable()
	for _, f := range c.held {
		err = errors.Join(err, f.Close())
	}
	c.held = nil
	return err
}

// counts are for the summary: what the supervisor has done for the run.
func (c *codeRecord) counts() []trace.Count {
	if c == nil {
		return nil
	}
	n := c.watch.Counts()
	return []trace.Count{
		{Name: "code.opened", N: n.Opened},
		{Name: "code.hashed", N: n.Hashed},
		{Name: "code.cached", N: n.Cached},
		{Name: "code.bytes", N: n.Bytes},
		{Name: "code.stored", N: n.Stored},
		{Name: "code.dropped", N: n.Dropped},
	}
}

// end waits for digests that are still being taken and returns what the record lacks.
func (c *codeRecord) end() []string {
	if c == nil {
		return nil
	}
	var findings []string
	if c.missing != "" {
		findings = append(findings, c.missing)
	}
	if left := c.watch.Wait(); left > 0 {
		findings = append(findings, "code: "+strconv.Itoa(left)+" files were not hashed in time")
	}
	if n := c.watch.Counts().Failed; n > 0 {
		findings = append(findings, "code: "+strconv.FormatUint(n, 10)+" execve calls were refused because agentguard had no descriptor for their files")
	}
	return findings
}
