package changes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

func appendRecord(j *os.File, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := trimTorn(j); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if _, err := j.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return j.Sync()
}

// trimTorn cuts off a last line without its end, which a crash or a full disk
// left: a line that was added to it could not be read again.
func trimTorn(j *os.File) error {
	st, err := j.Stat()
	if err != nil || st.Size() == 0 {
		return err
	}
	var last [1]byte // of a journal of megabytes that grows by thousands of directories, no more is read each time
	if _, err := j.ReadAt(last[:], st.Size()-1); err != nil || last[0] == '\n' {
		return err
	}
	b, err := readWhole(j)
	if err != nil {
		return err
	}
	if end := bytes.LastIndexByte(b, '\n') + 1; end < len(b) {
		return j.Truncate(int64(end))
	}
	return nil
}

// maxJournal bounds a journal, in bytes.
const maxJournal = 64 << 20

func readWhole(j *os.File) ([]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(j, 0, maxJournal+1))
	if err == nil && len(b) > maxJournal {
		err = fmt.Errorf("more than %d bytes", maxJournal)
	}
	return b, err
}

// readJournal returns the records of a journal. A last line without its end was
// cut by a crash, and what it announced was not begun.
func readJournal(j *os.File) ([]record, error) {
	b, err := readWhole(j)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	var out []record
	for l := range strings.Lines(string(b)) {
		if !strings.HasSuffix(l, "\n") {
			break
		}
		var r record
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
		out = append(out, r)
	}
	return out, nil
}
