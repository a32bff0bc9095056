// SPDX-License-Identifier: Apache-2.0

package configsource

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

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/panics"
)

// defects checks the number of panics, each with a stack in the log.
func (h *harness) defects(t *testing.T, want uint64) {
	t.Helper()
	got := h.Status().Panics
	logged := strings.Count(h.logged(), "recovered from a panic")
	if got != want || logged != int(want) || logged != strings.Count(h.logged(), "runtime/debug.Stack(") {
		t.Errorf("%d panics, %d in the log, want %d with their stacks:\n%s", got, logged, want, h.logged())
	}
}

// TestPanicInWatch makes the requests for the ConfigMap panic for a while: the running configuration stays, and the changes
// of that time are applied afterwards.
func TestPanicInWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, withPod())
		synctest.Wait() // for the watch
		w.api.set(func() { w.api.trap = func(r *http.Request) bool { return !strings.Contains(r.URL.Path, "/events") } })
		w.api.putText(size(4))
		synctest.Wait()
		w.expect(t, "while the watch lasts", "applied 4")
		w.api.cut(nil)
		time.Sleep(time.Second + firstRestartDelay + 2*firstRestartDelay + time.Second) // each watch is followed by a second
		w.expect(t, "panics", "refused reading configmap kube-system/node-cache: internal error: the log has its stack trace")
		w.defects(t, 3)
		w.api.putText(size(5))
		w.api.set(func() { w.api.trap = nil })
		time.Sleep(4 * firstRestartDelay)
		w.expect(t, "fixed", "applied 5")
		w.api.putText(size(6))
		synctest.Wait()
		w.expect(t, "from then on", "applied 6")
		w.defects(t, 3)
		if got := strings.Join(eventTexts(w.api.written()), "; "); !strings.Contains(got, "internal error: the log has its stack trace") {
			t.Errorf("events %s, want one about it", got)
		}
	})
}

// TestPanicAtStart panics at the start: the agent starts with the last good configuration.
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
		w.expect(t, "fixed", "applied 3")
	})
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{})
		w.api.set(func() { w.api.trap = func(*http.Request) bool { return true } })
		if _, _, err := w.Load(t.Context()); !errors.Is(err, panics.Err) {
			t.Errorf("without a last good one: %v, want a defect", err)
		}
	})
}

// TestPanicInEvents makes the requests for an Event panic: the Event is abandoned after some attempts, and the next is
// written.
func TestPanicInEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watching(t, withPod())
		w.api.set(func() { w.api.trap = func(r *http.Request) bool { return r.Method == http.MethodPost } })
		w.events.refused(errors.New("bad"))
		time.Sleep(time.Minute)
		w.defects(t, eventTries)
		w.api.set(func() { w.api.trap = nil })
		w.events.refused(errors.New("worse"))
		time.Sleep(time.Minute)
		if st := w.Status(); st.EventsFailed != 1 || st.EventsWritten != 1 {
			t.Errorf("status %+v, want one failed and one written", st)
		}
		w.api.set(func() { w.api.noEvents = http.StatusForbidden })
		w.setTrap("writing event failed")
		w.events.refused(errors.New("worst"))
		synctest.Wait()
		w.defects(t, eventTries+1)
		w.setTrap("")
		w.api.set(func() { w.api.noEvents = 0 })
		w.events.refused(errors.New("the end"))
		time.Sleep(time.Minute)
		if st := w.Status(); st.EventsWritten != 2 {
			t.Errorf("status %+v, want another written", st)
		}
	})
}

// TestPanicInLastGood makes the save of the last good configuration panic: the next is saved.
func TestPanicInLastGood(t *testing.T) {
	t.Parallel()
	folder, inTheWay := blocked(t)
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, Config{LastGood: folder})
		w.api.putText(size(3))
		w.setTrap("saving last good configuration failed")
		defer w.begin(t)()
		synctest.Wait()
		w.defects(t, 1)
		w.setTrap("")
		assert.NoError(t, os.Remove(inTheWay))
		time.Sleep(firstRestartDelay)
		synctest.Wait()
		if st := w.Status(); st.Saves != 1 || st.SaveError != "" {
			t.Errorf("status %+v, want it kept", st)
		}
		w.expect(t, "all the time", "loaded 3")
	})
}

// TestPanicInReport makes Changed panic: the configuration is reported again.
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

// A panicking reader panics a number of times before it calls the reader that it wraps.
type panicking struct {
	configReader
	loads, runs int
}

func (p *panicking) load(ctx context.Context) (content, error) {
	if p.loads--; p.loads >= 0 {
		panic("a trap in load")
	}
	return p.configReader.load(ctx)
}

func (p *panicking) run(ctx context.Context) error {
	if p.runs--; p.runs >= 0 {
		panic("a trap in run")
	}
	return p.configReader.run(ctx)
}

// TestPanicInFile makes the read and the watch of a file panic.
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
		proctest.Eventually(t, time.Minute, want, func() bool { return strings.HasSuffix(w.saying(), want) })
	}
	becomes("applied 3")
	write(t, path, size(4))
	becomes("applied 4")
	w.defects(t, 2)
}

// TestPanicInKubeDNS makes the read of the kube-dns folder panic.
func TestPanicInKubeDNS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "dns")
	assert.NoError(t, os.Mkdir(folder, 0o755))
	write(t, file, size(3))
	write(t, filepath.Join(folder, "federations"), `{"a": "b.example"}`)
	w := newHarness(t, Config{File: file, KubeDNS: folder, LastGood: keepGood(t)})
	w.setTrap("kube-dns setting not supported")
	defer w.begin(t)()
	w.expect(t, "at the start", "last good 7")
	proctest.Eventually(t, time.Minute, "another try", func() bool { return w.Status().Panics > 1 })
	w.setTrap("")
	proctest.Eventually(t, time.Minute, "fixed", func() bool { return strings.HasSuffix(w.saying(), "applied 3") })
}
