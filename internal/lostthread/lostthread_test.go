//go:build linux

package lostthread

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// Each call has a thread of its own, never the first, and the thread is gone afterwards,
// also when many calls fight for threads that all are wanted.
func TestRun(t *testing.T) {
	var all sync.WaitGroup
	tids := make(chan int, 200)
	for range cap(tids) {
		all.Go(func() {
			err := Run(func() error {
				runtime.Gosched()
				tids <- unix.Gettid()
				return errors.Join(os.WriteFile("/proc/thread-self/comm", []byte(mark), 0), errors.New("as it was"))
			})
			if err == nil || err.Error() != "as it was" {
				t.Error(err)
			}
		})
	}
	all.Wait()
	close(tids)
	for tid := range tids {
		if tid == os.Getpid() {
			t.Error("on the first thread")
		}
		for end := time.Now().Add(2 * time.Minute); marked(tid); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("thread %d is still there", tid)
			}
		}
	}
}

// mark is the name that a call gives its thread: a number alone may be given again.
const mark = "lost"

func marked(tid int) bool {
	name, err := os.ReadFile("/proc/self/task/" + strconv.Itoa(tid) + "/comm")
	return err == nil && string(name) == mark+"\n"
}
