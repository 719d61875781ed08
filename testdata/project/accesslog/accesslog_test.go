package accesslog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const good = `192.0.2.7 - - [05/Mar/2024:10:11:12 +0000] "GET /a?b=c HTTP/1.1" 200 512 "-" "curl/8"`

func TestParse(t *testing.T) {
	got, err := Parse(good)
	if err != nil {
		t.Fatal(err)
	}
	want := Entry{"192.0.2.7", time.Date(2024, 3, 5, 10, 11, 12, 0, time.UTC), "GET", "/a?b=c", 200, 512}
	if !got.Time.Equal(want.Time) {
		t.Errorf("time %v, want %v", got.Time, want.Time)
	}
	got.Time = want.Time
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, line := range []string{
		"",
		"lonely",
		strings.Replace(good, "[", "", 1),
		strings.Replace(good, "Mar", "Foo", 1),
		strings.Replace(good, `"GET`, "GET", 1),
		strings.Replace(good, " 200 ", " 999 ", 1),
		strings.Replace(good, " 512 ", " -5 ", 1),
		good[:strings.Index(good, " 200")],
	} {
		if _, err := Parse(line); !errors.Is(err, ErrFormat) {
			t.Errorf("Parse(%q) = %v, want ErrFormat", line, err)
		}
	}
}

// Many goroutines over real files: threads, temporary files, the race of all
// against all for the scheduler.
func TestSummarizeConcurrently(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "access.log")
	if err := os.WriteFile(name, []byte(strings.Repeat(good+"\n", 500)+"junk\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f, err := os.Open(name)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			sum, err := Summarize(f, 3)
			if err != nil || sum.Requests != 500 || sum.Bad != 1 || sum.Bytes != 500*512 {
				t.Errorf("got %+v, %v", sum, err)
			}
		}()
	}
	wg.Wait()
}

func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add(`x [] "" 1 -`)
	f.Fuzz(func(t *testing.T, line string) {
		e, err := Parse(line)
		if err == nil && (e.Status < 100 || e.Bytes < 0) {
			t.Errorf("%q gave %+v", line, e)
		}
	})
}
