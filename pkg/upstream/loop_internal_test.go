// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net/netip"
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

// probeName is the name that a probe asks for.
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

func TestLoops(t *testing.T) {
	t.Parallel()
	now := time.Unix(1795212600, 0)
	l := NewLoops(nil, func() time.Time { return now })
	back := map[string]int{}
	one := probeName(t, l.probe([]byte(rootZone), func() { back["one"]++ }))
	two := probeName(t, l.probe([]byte("\x05local\x00"), func() { back["two"]++ }))
	if bytes.Equal(one, two) {
		t.Fatalf("two probes for %x", one)
	}
	other := probeName(t, NewLoops(nil, nil).probe([]byte(rootZone), func() { back["other"]++ }))
	if l.Came(other) || l.Came([]byte(rootZone)) {
		t.Error("a query of another process is taken for its own")
	}
	first, again := l.Came(one), l.Came(one)
	if !first || !again || !l.Came(two) {
		t.Error("a query of its own is not known")
	}
	now = now.Add(loopMemory + 1)
	if l.Came(one) {
		t.Error("an old query is still known")
	}
	if want := map[string]int{"one": 2, "two": 1}; back["one"] != 2 || back["two"] != 1 || back["other"] != 0 {
		t.Errorf("told %v, want %v", back, want)
	}
	if q := l.probe(bytes.Repeat([]byte("\x01a"), 120), nil); q != nil {
		t.Errorf("probe for a name too long: %x", q)
	}
	if q := NewLoops(iotest.ErrReader(io.EOF), nil).probe([]byte(rootZone), nil); q != nil {
		t.Errorf("probe without randomness: %x", q)
	}
}

// TestLoopsIsBounded sends more probes than are remembered, then waits until none is.
func TestLoopsIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1795212600, 0)
	l := NewLoops(nil, func() time.Time { return now })
	var names [][]byte
	for range maxLoopProbes + 10 {
		names = append(names, probeName(t, l.probe([]byte(rootZone), func() {})))
	}
	known := 0
	for _, name := range names {
		if l.Came(name) {
			known++
		}
	}
	if known != maxLoopProbes || l.Came(names[0]) || len(l.sent) != maxLoopProbes || len(l.order) != maxLoopProbes {
		t.Errorf("%d known of %d and %d, want the latest %d", known, len(l.sent), len(l.order), maxLoopProbes)
	}
	now = now.Add(loopMemory + 1)
	l.probe([]byte(rootZone), func() {})
	if len(l.sent) != 1 || len(l.order) != 1 {
		t.Errorf("%d and %d are remembered after all but one are old", len(l.sent), len(l.order))
	}
}

func TestLoopsAtOnce(t *testing.T) {
	t.Parallel()
	l := NewLoops(nil, nil)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				came := false
				q := l.probe([]byte(rootZone), func() { came = true })
				if !l.Came(q[12:len(q)-4]) || !came {
					t.Error("a probe did not come back")
				}
			}
		})
	}
	all.Wait()
}

// A mirror is an upstream that can be made to send queries back.
type mirror struct {
	loops *Loops

	mu     sync.Mutex // guards the fields below
	leads  bool       // back
	probes []time.Time
	found  int
}

func (m *mirror) send(query []byte) {
	m.mu.Lock()
	m.probes = append(m.probes, time.Now())
	leads := m.leads
	m.mu.Unlock()
	if leads {
		m.loops.Came(query[12 : len(query)-4])
	}
}

func (m *mirror) set(leads bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leads = leads
}

// sent gives the probes so far, and how often a loop was found.
func (m *mirror) sent() (probes, found int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.probes), m.found
}

// guarded makes a guard of the mirror.
func guarded(m *mirror) *loopGuard {
	c := &common{rand: rand.Reader, now: time.Now, log: slog.New(warnings{slog.DiscardHandler, m})}
	m.loops = NewLoops(nil, time.Now)
	return &loopGuard{
		common: c, loops: m.loops, zone: []byte(rootZone), network: "udp", addr: netip.MustParseAddrPort("192.0.2.1:53"),
		send: m.send,
	}
}

// warnings is a log that counts as found what it is warned of.
type warnings struct {
	slog.Handler

	of *mirror
}

// Enabled implements slog.Handler.
func (warnings) Enabled(_ context.Context, level slog.Level) bool { return level == slog.LevelWarn }

// Handle implements slog.Handler.
func (w warnings) Handle(context.Context, slog.Record) error {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.of.found++
	return nil
}

// useFor has the upstream used ten times a second.
func useFor(g *loopGuard, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		g.use(time.Now())
	}
	synctest.Wait()
}

func TestLoopGuardProbesNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &mirror{}
		g := guarded(m)
		defer g.stop()
		synctest.Wait()
		if n, _ := m.sent(); n != 0 {
			t.Fatalf("%d probes before it is used", n)
		}
		g.use(time.Now())
		synctest.Wait()
		if n, _ := m.sent(); n != 1 {
			t.Fatalf("%d probes at the first use, want 1", n)
		}
		useFor(g, 4*time.Minute-time.Second)
		if n, _ := m.sent(); n != 1 {
			t.Errorf("%d probes within 4 minutes, want 1", n)
		}
		g.again()
		useFor(g, time.Second)
		if n, _ := m.sent(); n != 2 {
			t.Errorf("%d probes after the list has changed, want 2", n)
		}
		useFor(g, time.Hour)
		if n, _ := m.sent(); n < 2+10 || n > 2+15 {
			t.Errorf("%d probes in an hour more, want 10 to 15", n-2)
		}
		before, _ := m.sent()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if n, _ := m.sent(); n != before {
			t.Errorf("%d probes while nobody used it", n-before)
		}
		if g.looped() {
			t.Error("it leads back, though no probe came")
		}
	})
}

func TestLoopGuardFindsAndClears(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &mirror{leads: true}
		g := guarded(m)
		defer g.stop()
		g.use(time.Now())
		synctest.Wait()
		if n, found := m.sent(); !g.looped() || n != 1 || found != 1 {
			t.Fatalf("after the first use: looped %v, %d probes, found %d times, want once", g.looped(), n, found)
		}
		useFor(g, 10*time.Minute)
		n, found := m.sent()
		if !g.looped() || found != 1 || n < 1+10 || n > 1+20 {
			t.Errorf("after 10 minutes: looped %v, found %d times, %d probes more, want 10 to 20", g.looped(), found, n-1)
		}
		m.set(false)
		time.Sleep(time.Minute + loopPatience + time.Second) // unused: the timer must do
		synctest.Wait()
		if g.looped() {
			t.Error("still left out after a probe stayed away")
		}
		before, _ := m.sent()
		useFor(g, time.Minute)
		if n, _ := m.sent(); n != before+1 {
			t.Errorf("%d probes once it is used again, want 1", n-before)
		}
		m.set(true)
		g.again()
		useFor(g, time.Second)
		if _, found := m.sent(); !g.looped() || found != 2 {
			t.Errorf("it leads back again: looped %v, found %d times, want 2", g.looped(), found)
		}
	})
}

// TestLoopGuardLate has probes come back late, more than once and after the end.
func TestLoopGuardLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &mirror{}
		g := guarded(m)
		var query []byte
		g.send = func(q []byte) { query = q }
		g.use(time.Now())
		synctest.Wait()
		time.Sleep(20 * time.Second)
		name := probeName(t, query)
		if !m.loops.Came(name) || !g.looped() {
			t.Error("a probe that came back after 20 s is not known")
		}
		for range 80 { // the same one, over and over: it must not put off the next
			time.Sleep(time.Second)
			m.loops.Came(name)
		}
		synctest.Wait()
		if g.looped() {
			t.Error("left out because of an old probe")
		}
		g.use(time.Now())
		synctest.Wait()
		g.stop()
		if !m.loops.Came(probeName(t, query)) {
			t.Error("a probe of an upstream that has left is not known: it would be sent on")
		}
		if _, found := m.sent(); g.looped() || found != 1 {
			t.Errorf("after the end: looped %v, found %d times, want once", g.looped(), found)
		}
		g.use(time.Now().Add(time.Hour))
		synctest.Wait()
	})
}

func TestLoopGuardRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &mirror{}
		g := guarded(m)
		defer g.stop()
		g.send = func([]byte) { panic(errors.New("any")) }
		g.use(time.Now())
		synctest.Wait()
		if n := g.panics.Load(); n != 1 {
			t.Errorf("%d panics recovered, want 1", n)
		}
		g.send = m.send
		m.set(true)
		g.again()
		g.use(time.Now())
		synctest.Wait()
		if !g.looped() {
			t.Error("no probe after a panic")
		}
	})
}

func TestNoLoopGuard(t *testing.T) {
	t.Parallel()
	var g *loopGuard
	g.use(time.Now())
	g.again()
	g.stop()
	if g.looped() {
		t.Error("without a guard an upstream leads back")
	}
}
