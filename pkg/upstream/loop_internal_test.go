// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// rootZone is the root in wire form.
const rootZone = "\x00"

// probeName returns the name that a probe asks for.
func probeName(t *testing.T, query []byte) []byte {
	t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(query); err != nil || len(m.Question) != 1 || !m.RecursionDesired || m.Response {
		t.Fatalf("probe %x: %v, error %v", query, m, err)
	}
	name := query[12 : len(query)-4]
	if !wire.IsLoopName(name) {
		t.Fatalf("probe for %s, want a loop name", m.Question[0].Name)
	}
	return name
}

func TestLoopDetector(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := NewLoopDetector(nil)
		back := map[string]int{}
		one := probeName(t, d.probe([]byte(rootZone), func() { back["one"]++ }))
		two := probeName(t, d.probe([]byte("\x05local\x00"), func() { back["two"]++ }))
		if bytes.Equal(one, two) {
			t.Fatalf("two probes for %x", one)
		}
		other := probeName(t, NewLoopDetector(nil).probe([]byte(rootZone), func() { back["other"]++ }))
		if d.Detected(other) || d.Detected([]byte(rootZone)) {
			t.Error("a query of another process is taken for its own")
		}
		first, again := d.Detected(one), d.Detected(one)
		if !first || !again || !d.Detected(two) {
			t.Error("a query of its own is not known")
		}
		time.Sleep(loopProbeTTL - 1)
		if !d.Detected(one) {
			t.Error("a query is forgotten early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if d.Detected(one) {
			t.Error("an old query is still known")
		}
		if want := map[string]int{"one": 3, "two": 1}; !maps.Equal(back, want) {
			t.Errorf("got %v, want %v", back, want)
		}
		if q := d.probe(bytes.Repeat([]byte("\x01a"), 120), nil); q != nil {
			t.Errorf("probe for a name too long: %x", q)
		}
		if q := NewLoopDetector(iotest.ErrReader(io.EOF)).probe([]byte(rootZone), nil); q != nil {
			t.Errorf("probe without randomness: %x", q)
		}
	})
}

// The detector remembers a bounded number of probes, for a limited time.
func TestLoopDetectorBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := NewLoopDetector(nil)
		for range maxLoopProbes {
			probeName(t, d.probe([]byte(rootZone), func() {}))
		}
		if q := d.probe([]byte(rootZone), func() {}); q != nil || remembered(d) != maxLoopProbes {
			t.Errorf("probe %x above the bound, %d are remembered, want %d", q, remembered(d), maxLoopProbes)
		}
		time.Sleep(loopProbeTTL)
		synctest.Wait()
		if q := d.probe([]byte(rootZone), func() {}); q == nil || remembered(d) != 1 {
			t.Errorf("probe %x, %d are remembered after all but one are old", q, remembered(d))
		}
	})
}

func remembered(d *LoopDetector) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.sent)
}

// A fakeLoop is an upstream that can be made to send queries back.
type fakeLoop struct {
	detector *LoopDetector

	mu      sync.Mutex // guards the fields below
	looping bool       // sends queries back
	probes  []time.Time
	found   int // times
}

func (f *fakeLoop) send(query []byte) {
	f.mu.Lock()
	f.probes = append(f.probes, time.Now())
	looping := f.looping
	f.mu.Unlock()
	if looping {
		f.detector.Detected(query[12 : len(query)-4])
	}
}

// sent returns the number of probes, and how often a loop was found.
func (f *fakeLoop) sent() (probes, found int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.probes), f.found
}

// newFakeLoopMonitor makes a monitor of the fake upstream.
func newFakeLoopMonitor(f *fakeLoop) *loopMonitor {
	f.detector = NewLoopDetector(nil)
	return newLoopMonitor(newCommon(Config{Log: slog.New(foundLoops{slog.DiscardHandler, f}), LoopDetector: f.detector, Zone: []byte(rootZone)}), "udp://192.0.2.1:53", f.send)
}

// foundLoops is a log handler that counts the loops that are found.
type foundLoops struct {
	slog.Handler

	of *fakeLoop
}

// Enabled implements slog.Handler.
func (foundLoops) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (w foundLoops) Handle(_ context.Context, r slog.Record) error {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	if r.Message == "upstream loop detected" {
		w.of.found++
	}
	return nil
}

// onQuery does what a query to the upstream does.
func onQuery(m *loopMonitor, now time.Time) {
	if now.UnixNano() >= m.nextProbe.Load() {
		m.probeDue(now)
	}
}

// useFor queries the upstream ten times a second.
func useFor(m *loopMonitor, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		onQuery(m, time.Now())
	}
	synctest.Wait()
}

func TestLoopMonitorInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeLoop{}
		m := newFakeLoopMonitor(f)
		defer m.stop()
		synctest.Wait()
		if n, _ := f.sent(); n != 0 {
			t.Fatalf("%d probes before it is used", n)
		}
		onQuery(m, time.Now())
		synctest.Wait()
		if n, _ := f.sent(); n != 1 {
			t.Fatalf("%d probes at the first use, want 1", n)
		}
		useFor(m, 4*time.Minute-time.Second)
		if n, _ := f.sent(); n != 1 {
			t.Errorf("%d probes within 4 minutes, want 1", n)
		}
		m.recheck()
		useFor(m, time.Second)
		if n, _ := f.sent(); n != 2 {
			t.Errorf("%d probes after the list has changed, want 2", n)
		}
		useFor(m, time.Hour)
		if n, _ := f.sent(); n < 2+10 || n > 2+15 {
			t.Errorf("%d probes in an hour more, want 10 to 15", n-2)
		}
		before, _ := f.sent()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if n, _ := f.sent(); n != before {
			t.Errorf("%d probes while unused", n-before)
		}
		if m.looping.Load() {
			t.Error("looped without a returned probe")
		}
	})
}

// Probes that return late, more than once or after the end have no wrong effect.
func TestLoopMonitorLateProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeLoop{}
		m := newFakeLoopMonitor(f)
		var query []byte
		m.send = func(q []byte) { query = q }
		onQuery(m, time.Now())
		synctest.Wait()
		time.Sleep(20 * time.Second)
		name := probeName(t, query)
		if !f.detector.Detected(name) || !m.looping.Load() {
			t.Error("a probe that came back after 20 s is not known")
		}
		for range 80 { // the same one repeatedly must not postpone the next
			time.Sleep(time.Second)
			f.detector.Detected(name)
		}
		synctest.Wait()
		if m.looping.Load() {
			t.Error("excluded because of an old probe")
		}
		onQuery(m, time.Now())
		synctest.Wait()
		m.stop()
		if !f.detector.Detected(probeName(t, query)) {
			t.Error("a probe of an upstream that has left is not known: it would be sent on")
		}
		if _, found := f.sent(); m.looping.Load() || found != 1 {
			t.Errorf("after the end: looped %v, found %d times, want once", m.looping.Load(), found)
		}
		onQuery(m, time.Now().Add(time.Hour))
		synctest.Wait()
	})
}
