package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/agentguard/agentguard/internal/changes"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/trace/seal"
)

// subjects are the digests of the run's other files.
func (s *sealer) subjects(res *runs.Result, result []byte) ([]seal.Subject, error) {
	sum := s.builder.Sum()
	list := []seal.Subject{
		{Name: runs.TraceFile, Digest: seal.Digest{SHA256: fmt.Sprintf("%x", sum)}},
		{Name: runs.PlanFile, Digest: seal.Digest{SHA256: digest(s.r.planJSON)}},
		{Name: runs.ResultFile, Digest: seal.Digest{SHA256: digest(result)}},
	}
	for _, o := range []struct {
		name string
		out  runs.Output
	}{{runs.StdoutFile, res.Stdout}, {runs.StderrFile, res.Stderr}} {
		sum := o.out.SHA256 // of all that was written: of the file too, when all was kept
		if o.out.Truncated || sum == "" {
			var err error
			if sum, err = seal.Sum(s.r.dir.FS(), o.name); err != nil {
				return nil, err
			}
		}
		list = append(list, seal.Subject{Name: o.name, Digest: seal.Digest{SHA256: sum}})
	}
	kept, err := keptSubjects(s.r.dir)
	return append(list, kept...), err
}

// keptSubjects are what the run's directories hold: what was executed, and the
// index of the changes, which has the digests of their contents.
func keptSubjects(dir *runs.RunDir) ([]seal.Subject, error) {
	list, err := codeSubjects(dir)
	if err != nil {
		return nil, err
	}
	sum, err := seal.Sum(dir.FS(), changesIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return list, nil
	}
	return append(list, seal.Subject{Name: changesIndex, Digest: seal.Digest{SHA256: sum}}), err
}

const changesIndex = runs.ChangesDir + "/" + changes.IndexFile

// syncSubjects waits until the subjects in directories of the run are on disk;
// the others are synced by who holds them open.
func syncSubjects(dir *runs.RunDir, list []seal.Subject) error {
	dirs := map[string]bool{}
	for _, sub := range list {
		at, base := path.Split(sub.Name)
		if at == "" {
			continue
		}
		dirs[strings.TrimSuffix(at, "/")] = true
		if err := syncFile(dir, at+base); err != nil {
			return err
		}
	}
	for name := range dirs {
		d, err := dir.OpenDir(name)
		if err == nil {
			err = errors.Join(d.Sync(), d.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func syncFile(dir *runs.RunDir, name string) error {
	f, err := dir.FS().Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.(*os.File).Sync(), f.Close())
}

// codeSubjects are the files that were kept of what was executed. Their names
// are their digests.
func codeSubjects(dir *runs.RunDir) ([]seal.Subject, error) {
	names, err := dir.Names(runs.CodeDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	slices.Sort(names)
	var list []seal.Subject
	for _, n := range names {
		list = append(list, seal.Subject{Name: runs.CodeDir + "/" + n, Digest: seal.Digest{SHA256: n}})
	}
	return list, nil
}
