// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

var (
	plotFile = flag.String("plot", "", "draw the memory of TestMemoryHolds into this SVG file, from the repository's folder on")
	rate     = flag.Int("rate", 50_000, "with SOAK: what the flood of TestMemoryHolds asks in a second")
	halfTime = flag.Duration("half", 5*time.Minute, "with SOAK: how long the upstream is silent in TestMemoryHolds, and then back")
)

const mib = 1 << 20

// Of the names below miss.test the first are hot, and floods ask for the others.
const (
	hotNames   = 100
	hotRate    = 1000 // queries a second
	floodNames = 1_000_000
)

// thrashing is more than an agent reads again from its program, which has some 5,000 pages, when it has enough memory. One
// with too little reads ten times as many (docs/memory.md), and one whose pages are read ahead many at each time.
const thrashing = 24 * mib

// memoryRun is an agent in a cgroup, its upstream, and who asks it.
type memoryRun struct {
	agent      *agent
	memory     *cgroup
	limit      int64
	nsd        *proctest.Process
	hits       *clients
	kubelet    *kubelet
	flood      *clients
	began      time.Time
	faults     int64          // of pages that had to be read, until it began
	before     proctest.Usage // of the agent, until it began
	samples    []sample
	dead, back time.Duration // when the upstream fell silent, and when it was back
}

// A sample is the memory at one moment, in bytes.
type sample struct {
	at         time.Duration
	rss, usage int64
}

// TestMemoryHolds has an agent with little memory flooded with random names, at first while its upstream is silent. The
// kernel does not end it, and what it has in its cache is still answered.
func TestMemoryHolds(t *testing.T) {
	tests := []struct {
		limit, cache int64 // MiB
		half         time.Duration
		plot         string
	}{
		{96, 64, proctest.OrdinaryOrSoak(4*time.Second, *halfTime), *plotFile},
		{64, 32, proctest.OrdinaryOrSoak(3*time.Second, *halfTime/5), ""},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("limit %d MiB, cache %d MiB", tt.limit, tt.cache), func(t *testing.T) {
			h := startMemoryRun(t, tt.limit*mib, tt.cache*mib, "")
			h.takeSamples(t, proctest.OrdinaryOrSoak(time.Second, 5*time.Second))
			h.nsd.Signal(syscall.SIGSTOP)
			h.dead = time.Since(h.began)
			h.flood = startClients(t, clientsOptions{
				to: h.agent.listen, rate: proctest.OrdinaryOrSoak(20_000, *rate), suffix: proctest.OrdinaryOrSoak("large.test", "miss.test"), ports: 4, from: clientAddrs(64),
				name: func(int) int { return hotNames + rand.IntN(floodNames) },
			}, false)
			h.takeSamples(t, tt.half)
			h.nsd.Signal(syscall.SIGCONT)
			h.back = time.Since(h.began)
			h.takeSamples(t, tt.half+proctest.OrdinaryOrSoak(2*time.Second, 0)) // so that the large answers fill the cache
			end := time.Now()
			h.flood.end()
			h.hits.end()
			h.check(t, end)
			if tt.plot != "" {
				if !filepath.IsAbs(tt.plot) {
					tt.plot = filepath.Join("..", "..", tt.plot)
				}
				proctest.WriteFile(t, tt.plot, h.plot())
			}
		})
	}
}

// startMemoryRun starts the agent, with more configuration, and asks for the hot names.
func startMemoryRun(t *testing.T, limit, size int64, more string) *memoryRun {
	t.Helper()
	proctest.ReserveCPU(t)
	dropPages(t, nodeCache)
	h := &memoryRun{memory: newCgroup(t, limit), limit: limit}
	nsd, upstream := startNSD(t)
	h.nsd = nsd
	h.agent = start(t, settings{memory: h.memory, rest: fmt.Sprintf("forward: [{zone: ., to: [%q]}]\ncache: {size: %d}\n%s", upstream, size, more)})
	for i := range hotNames {
		r, err := dns.Exchange(new(dns.Msg).SetQuestion(nameOf(i, "miss.test"), dns.TypeA), h.agent.listen.String())
		if err != nil || r.Rcode != dns.RcodeSuccess || len(r.Answer) == 0 {
			t.Fatalf("before: %v, %v", r, err)
		}
	}
	h.kubelet = startKubelet(t, h.agent)
	h.before = h.agent.Usage(t)
	h.began, h.faults = time.Now(), h.memory.field(t, "memory.stat", "pgmajfault")
	h.hits = startClients(t, clientsOptions{
		to: h.agent.listen, rate: hotRate, suffix: "miss.test", name: func(i int) int { return i % hotNames },
	}, true)
	return h
}

// takeSamples takes a sample each second for so long.
func (m *memoryRun) takeSamples(t *testing.T, long time.Duration) {
	t.Helper()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for until := time.Now().Add(long); time.Now().Before(until); <-ticker.C {
		if m.agent.Ended() {
			t.Fatalf("after %s it ended: %v; the kernel has killed %d times for lack of memory", time.Since(m.began), m.agent.Err(), m.memory.kills(t))
		}
		m.samples = append(m.samples, sample{at: time.Since(m.began), rss: m.agent.Usage(t).RSS, usage: m.memory.usage(t)})
	}
}

// check says what has become of memory and queries.
func (m *memoryRun) check(t *testing.T, end time.Time) {
	t.Helper()
	var rss, usage int64
	for _, s := range m.samples {
		rss, usage = max(rss, s.rss), max(usage, s.usage)
	}
	proctest.Figure(t, "resident %.1f MiB at most, %.1f MiB at the end; the cgroup %.1f of %d MiB at most", inMiB(rss), inMiB(m.agent.Usage(t).RSS), inMiB(usage), m.limit/mib)
	faults := m.memory.field(t, "memory.stat", "pgmajfault") - m.faults
	now := m.agent.Usage(t)
	read := now.DiskRead - m.before.DiskRead
	proctest.Figure(t, "pages of the program that were read again: %d, which is %.1f MiB", faults, inMiB(read))
	share := 100 * float64(now.CPU-m.before.CPU) / float64(time.Since(m.began))
	proctest.Figure(t, "the agent took %.0f %% of a CPU", share)
	proctest.Figure(t, "the flood: %s", m.flood)
	proctest.Figure(t, "hits: %s", m.hits)
	// Other programs may take the CPU, or keep the disk busy that the few pages are on.
	m.kubelet.check(t, func(f failure) bool {
		return share < minCPUShare || f.share < minCPUShare && f.read > 0 && read < thrashing
	})
	at := []time.Time{m.began, m.began.Add(m.dead), m.began.Add(m.back), end}
	for i, phase := range []string{"before", "upstream silent", "upstream back"} {
		took := m.hits.took(at[i], at[i+1])
		proctest.Figure(t, "hits, %s: %d answered, median %s, p99 %s, p99.9 %s, longest %s", phase, len(took),
			ms(quantile(took, 500)), ms(quantile(took, 990)), ms(quantile(took, 999)), ms(quantile(took, 1000)))
		if proctest.Soak() && quantile(took, 990) > time.Millisecond {
			t.Errorf("hits, %s: p99 %s, want 1 ms", phase, ms(quantile(took, 990)))
		}
	}
	if kills := m.memory.kills(t); kills > 0 {
		t.Errorf("the kernel has killed %d times for lack of memory", kills)
	}
	asked, rcodes := int(m.hits.asked.Load()), m.hits.rcodes()
	if answered := m.hits.answered(); rcodes[dns.RcodeSuccess] != answered || answered < asked/2 {
		t.Errorf("hits: %s, want NOERROR for all that are answered", m.hits)
	}
	if m.flood.rcodes()[dns.RcodeSuccess] == 0 {
		t.Errorf("the flood: %s, want answers once the upstream is back", m.flood)
	}
	for _, p := range m.agent.status(t).Problems {
		if p.Where == "memory" {
			t.Errorf("a problem: %s", p.What)
		}
	}
}

// TestMemoryTooLittle lowers the limit of a running agent until it is too little, and then does as the hint says.
func TestMemoryTooLittle(t *testing.T) {
	h := startMemoryRun(t, 128*mib, 64*mib, "")
	problem := func() (p problem) {
		for _, p := range h.agent.status(t).Problems {
			if p.Where == "memory" {
				return p
			}
		}
		return p
	}
	if p := problem(); p.What != "" {
		t.Fatalf("a problem from the start: %s", p.What)
	}
	assert.NoError(t, h.memory.setLimit(72*mib))
	took := proctest.Eventually(t, time.Minute, "/status names the problem", func() bool { return problem().What != "" })
	proctest.Figure(t, "%s: seen after %s", problem().What, took.Round(time.Second))
	proctest.Eventually(t, time.Minute, "the log tells", func() bool { // it comes through a pipe
		return strings.Contains(h.agent.Stderr.String(), "too little memory")
	})
	_, size, found := strings.Cut(problem().Hint, "set cache.size to ")
	if !found {
		t.Fatalf("the hint has no size that fits: %s", problem().Hint)
	}
	text, err := os.ReadFile(h.agent.config)
	assert.NoError(t, err)
	proctest.WriteFile(t, h.agent.config, strings.Replace(string(text), fmt.Sprintf("size: %d", 64*mib), "size: "+size, 1))
	proctest.Eventually(t, time.Minute, "the problem is gone", func() bool { return problem().What == "" })
	h.hits.end()
	if rcodes := h.hits.rcodes(); rcodes[dns.RcodeSuccess] != h.hits.answered() {
		t.Errorf("hits: %s, want NOERROR for all", h.hits)
	}
}

// TestMemoryAtRest bounds the resident memory of an agent that has started: the pages of the program that only its start has
// used, such as those of clients that are not configured, are not resident.
func TestMemoryAtRest(t *testing.T) {
	dropPages(t, nodeCache)
	a, rss := start(t, settings{}), int64(0)
	proctest.Eventually(t, time.Minute, "at most 21 MiB are resident", func() bool { // it unmaps the pages beside its first answers
		rss = a.Usage(t).RSS
		return rss <= 21*mib
	}, func() string { return fmt.Sprintf("%.1f MiB", inMiB(rss)) })
	proctest.Figure(t, "resident %.1f MiB", inMiB(rss))
}

// dropPages drops a program's pages that no process maps. The pages of a file that was just written can be in folios of many, which
// are mapped and read as a whole: up to 31 MiB of the program's 36 were resident, and pages that were read again were 128 KiB each.
func dropPages(t *testing.T, program string) {
	t.Helper()
	f, err := os.Open(program)
	assert.NoError(t, err)
	defer func() { _ = f.Close() }()
	assert.NoError(t, f.Sync()) // only pages that are written can be dropped
	assert.NoError(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}

func inMiB(n int64) float64 { return float64(n) / mib }

// ms writes a time in ms.
func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }
