// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// defects checks how many there were, each with a stack in the log.
func (w *harness) defects(t *testing.T, want uint64) {
	t.Helper()
	got := w.Stats().Panics
	logged := strings.Count(w.logged(), "recovered from a panic")
	if got != want || logged != int(want) || logged != strings.Count(w.logged(), "runtime/debug.Stack(") {
		t.Errorf("%d panics, %d in the log, want %d with their stacks:\n%s", got, logged, want, w.logged())
	}
}

// TestDefectInWatch has the requests for the ConfigMap panic for a while: what runs stays, and what has come meanwhile is
// put to work.
func TestPanicInWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{Pod: pod()})
		w.api.putText(size(3))
		defer w.begin(t)()
		synctest.Wait()
		w.expect(t, "at the start", "loaded 3")
		w.api.set(func() { w.api.trap = func(r *http.Request) bool { return !strings.Contains(r.URL.Path, "/events") } })
		w.api.putText(size(4))
		synctest.Wait()
		w.expect(t, "while the watch lasts", "applied 4")
		w.api.cut(nil)
		time.Sleep(time.Second + firstRestartDelay + 2*firstRestartDelay + time.Second) // the end of a watch is followed by a second
		w.expect(t, "panics", "refused reading configmap kube-system/node-cache: a defect, the log has its stack")
		w.defects(t, 3)
		w.api.putText(size(5))
		w.api.set(func() { w.api.trap = nil })
		time.Sleep(4 * firstRestartDelay)
		w.expect(t, "mended", "applied 5")
		w.api.putText(size(6))
		synctest.Wait()
		w.expect(t, "from then on", "applied 6")
		w.defects(t, 3)
		if got := strings.Join(told(w.api.written()), "; "); !strings.Contains(got, "a defect, the log has its stack") {
			t.Errorf("events %s, want one about it", got)
		}
	})
}

// TestDefectAtStart has it panic at the start: it begins with the last good one.
func TestPanicAtStart(t *testing.T) {
	t.Parallel()
	folder := keepGood(t)
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{LastGood: folder})
		w.api.putText(size(3))
		w.api.set(func() { w.api.trap = func(*http.Request) bool { return true } })
		defer w.begin(t)()
		synctest.Wait()
		w.expect(t, "at the start", "last good 7")
		w.defects(t, 2) // one in Load and one in Run
		w.api.set(func() { w.api.trap = nil })
		time.Sleep(firstRestartDelay)
		synctest.Wait()
		w.expect(t, "mended", "applied 3")
	})
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{})
		w.api.set(func() { w.api.trap = func(*http.Request) bool { return true } })
		if _, _, err := w.Load(t.Context()); !errors.Is(err, errPanic) {
			t.Errorf("without a last good one: %v, want a defect", err)
		}
	})
}

// TestDefectInEvents has the requests that write an Event panic: the Event is given up after its tries, and the next is
// written.
func TestPanicInEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{Pod: pod()})
		w.api.putText(size(3))
		defer w.begin(t)()
		w.api.set(func() { w.api.trap = func(r *http.Request) bool { return r.Method == http.MethodPost } })
		w.Refused(errors.New("bad"))
		time.Sleep(time.Minute)
		w.defects(t, eventTries)
		w.api.set(func() { w.api.trap = nil })
		w.Refused(errors.New("worse"))
		time.Sleep(time.Minute)
		if st := w.Stats(); st.EventsFailed != 1 || st.EventsWritten != 1 {
			t.Errorf("stats %+v, want one failed and one written", st)
		}
		w.api.set(func() { w.api.noEvents = http.StatusForbidden })
		w.setTrap("an event could not be written")
		w.Refused(errors.New("worst"))
		synctest.Wait()
		w.defects(t, eventTries+1)
		w.setTrap("")
		w.api.set(func() { w.api.noEvents = 0 })
		w.Refused(errors.New("the end"))
		time.Sleep(time.Minute)
		if st := w.Stats(); st.EventsWritten != 2 {
			t.Errorf("stats %+v, want another written", st)
		}
	})
}

// TestDefectInKeeping has the keeping of the last good configuration panic: the next is kept.
func TestPanicInLastGood(t *testing.T) {
	t.Parallel()
	folder, inTheWay := blocked(t)
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{LastGood: folder})
		w.api.putText(size(3))
		w.setTrap("the last good configuration is not kept")
		defer w.begin(t)()
		synctest.Wait()
		w.defects(t, 1)
		w.setTrap("")
		if err := os.Remove(inTheWay); err != nil {
			t.Fatal(err)
		}
		time.Sleep(firstRestartDelay)
		synctest.Wait()
		if st, now := w.Stats(), w.Status(); st.Saves != 1 || now.SaveError != "" {
			t.Errorf("stats %+v, status %+v, want it kept", st, now)
		}
		w.expect(t, "all the time", "loaded 3")
	})
}

// TestDefectInTelling has who is told of a configuration panic: it is told again.
func TestPanicInReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{})
		w.api.putText(size(3))
		w.stumbles = 2
		defer w.begin(t)()
		w.api.putText(size(4))
		time.Sleep(firstRestartDelay)
		w.expect(t, "twice", "loaded 3")
		time.Sleep(3 * firstRestartDelay)
		w.expect(t, "in the end", "applied 4")
		w.defects(t, 2)
	})
}

// A stumbling follower panics a number of times before it does what the follower does that it stands for.
type panicking struct {
	configReader
	loads, runs int
}

func (f *panicking) load(ctx context.Context) (content, error) {
	if f.loads--; f.loads >= 0 {
		panic("a trap in load")
	}
	return f.configReader.load(ctx)
}

func (f *panicking) run(ctx context.Context) error {
	if f.runs--; f.runs >= 0 {
		panic("a trap in run")
	}
	return f.configReader.run(ctx)
}

// TestDefectInFile has the reading and the following of a file panic.
func TestPanicInFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, size(3))
	w := newHarness(t, Config{File: path, LastGood: keepGood(t)})
	w.main = &panicking{configReader: w.main, loads: 1, runs: 1}
	defer w.begin(t)()
	w.expect(t, "at the start", "last good 7")
	becomes := func(want string) {
		t.Helper()
		eventually(t, want, func() bool { return strings.HasSuffix(w.saying(), want) })
	}
	becomes("applied 3")
	write(t, path, size(4))
	becomes("applied 4")
	w.defects(t, 2)
}

// TestDefectInKubeDNS has the reading of the kube-dns folder panic.
func TestPanicInKubeDNS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "dns")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, file, size(3))
	write(t, filepath.Join(folder, "federations"), `{"a": "b.example"}`)
	w := newHarness(t, Config{File: file, KubeDNS: folder, LastGood: keepGood(t)})
	w.setTrap("part of the kube-dns folder has no counterpart")
	defer w.begin(t)()
	w.expect(t, "at the start", "last good 7")
	eventually(t, "another try", func() bool { return w.Stats().Panics > 1 })
	w.setTrap("")
	eventually(t, "mended", func() bool { return strings.HasSuffix(w.saying(), "applied 3") })
}
