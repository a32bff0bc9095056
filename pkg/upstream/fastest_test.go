// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// A fastestTest is a load of random names on servers, of which the first is the fastest. Times are since its start.
type fastestTest struct {
	name     string
	rate     float64          // mean of the queries a second
	long     time.Duration    // of the load
	slower   int              // servers that take 25 ms; the first takes 3 ms
	slow     float64          // share of the names that take 700 ms more
	at       int              // servers at which they do, from the first on; 0: all
	burst    [2]time.Duration // all names are slow in between
	changed  [2]time.Duration // the first server does something else in between
	first    upstreamtest.Action
	second   func(*rand.Rand, *upstreamtest.Action) // changes what the second does; nil: nothing
	left, on time.Duration                          // after a change it is left, and used again
	most     float64                                // percent that go to the wrong server; 0: 5
}

// A fastestRun is what came of one run.
type fastestRun struct {
	mu    sync.Mutex // guards the fields below
	names map[string]*fastestName
	waits []time.Duration // of the clients, for names that are not slow
	sent  int             // queries that reached servers
}

// A fastestName is a name that was asked once.
type fastestName struct {
	at      time.Duration // when it first reached a server
	servers int           // that it reached then, as bits: two for an exploratory query
}

// play runs the load with a policy.
func (tt *fastestTest) play(t *testing.T, policy upstream.Policy, seed uint64) *fastestRun {
	t.Helper()
	r := &fastestRun{names: map[string]*fastestName{}}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		memory := upstreamtest.Network{}
		cfg := upstream.Config{Policy: policy, Dial: memory.Dial}
		for i := range tt.slower + 1 {
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 53)
			random := rand.New(rand.NewPCG(seed, uint64(i+1)))
			memory[addr] = upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
				r.mu.Lock()
				defer r.mu.Unlock()
				at := time.Since(start)
				if !q.Probe {
					r.arrived(q.Name, i, at)
				}
				return tt.answer(q, i, at, random)
			})
			cfg.Targets = append(cfg.Targets, target("udp", addr))
		}
		p := newPool(t, cfg)
		run(t, p)
		random := rand.New(rand.NewPCG(seed, 0))
		var clients sync.WaitGroup
		for i := 0; ; i++ {
			time.Sleep(time.Duration(random.ExpFloat64() / tt.rate * float64(time.Second)))
			asked := time.Since(start)
			if asked > tt.long {
				break
			}
			name := fmt.Sprintf("n%d.example.", i)
			slow := random.Float64() < tt.slow || tt.burst[0] <= asked && asked < tt.burst[1]
			if slow {
				name = "slow-" + name
			}
			q := upstreamtest.Question(t, name)
			clients.Go(func() {
				if _, err := exchange(p, q, 4500*time.Millisecond); err != nil {
					t.Errorf("asking for %s: %v", name, err)
				}
				if !slow {
					r.mu.Lock()
					defer r.mu.Unlock()
					r.waits = append(r.waits, time.Since(start)-asked)
				}
			})
		}
		clients.Wait()
	})
	slices.Sort(r.waits)
	return r
}

// arrived records that a query reached a server.
func (r *fastestRun) arrived(name string, server int, at time.Duration) {
	r.sent++
	if n := r.names[name]; n == nil {
		r.names[name] = &fastestName{at: at, servers: 1 << server}
	} else if n.at == at {
		n.servers |= 1 << server
	}
}

// answer is the script of a server.
func (tt *fastestTest) answer(q upstreamtest.Query, server int, at time.Duration, random *rand.Rand) upstreamtest.Action {
	a := upstreamtest.Action{Delay: 25 * time.Millisecond, Raw: []upstreamtest.Raw{echo}}
	switch {
	case server == 0 && tt.changed[0] <= at && at < tt.changed[1]:
		a.Delay, a.Drop = tt.first.Delay, tt.first.Drop && !q.Probe
	case server == 0:
		a.Delay = 3 * time.Millisecond
	case server == 1 && tt.second != nil:
		tt.second(random, &a)
	}
	if strings.HasPrefix(q.Name, "slow") && (tt.at == 0 || server < tt.at) {
		a.Delay += 700 * time.Millisecond
	}
	return a
}

// echo answers with the query and QR and RA set, which costs less than to build an answer.
func echo(q []byte) []byte {
	r := bytes.Clone(q)
	r[2], r[3] = r[2]|0x80, r[3]|0x80
	return r
}

// share returns the percentage of names between two times that at first reached the wrong servers alone: the first
// one, or all others.
func (r *fastestRun) share(from, to time.Duration, first bool) float64 {
	all, wrong := 0, 0
	for _, n := range r.names {
		if from <= n.at && n.at < to {
			all++
			if first && n.servers == 1 || !first && n.servers&1 == 0 {
				wrong++
			}
		}
	}
	return 100 * float64(wrong) / float64(max(all, 1))
}

// The fastest upstream gets the queries, whatever names are slow. When it becomes slow itself, it is left, and when it
// is fast again, it is used again.
//
//	go test ./pkg/upstream -run TestFastest -v
//
// prints the figures of docs/reliability.md.
func TestFastest(t *testing.T) {
	t.Parallel()
	const (
		ms = time.Millisecond
		s  = time.Second
	)
	atOnce := func(share float64) func(*rand.Rand, *upstreamtest.Action) {
		return func(random *rand.Rand, a *upstreamtest.Action) {
			if random.Float64() < share {
				a.Delay = ms / 10
			}
		}
	}
	refuse := func(_ *rand.Rand, a *upstreamtest.Action) {
		*a = upstreamtest.Action{Delay: ms / 10, Rcode: dns.RcodeRefused}
	}
	tests := []fastestTest{
		{name: "no slow names", rate: 200, long: 6 * s},
		{name: "0.2 % slow names", rate: 200, long: 6 * s, slow: 0.002},
		{name: "0.5 % slow names", rate: 200, long: 6 * s, slow: 0.005},
		{name: "1 % slow names", rate: 200, long: 6 * s, slow: 0.01},
		{name: "3 % slow names", rate: 200, long: 6 * s, slow: 0.03},
		{name: "1 % slow names, three servers", rate: 200, long: 6 * s, slow: 0.01, slower: 2},
		{name: "100 slow names in a row", rate: 200, long: 6 * s, burst: [2]time.Duration{3 * s, 3500 * ms}},
		{
			name: "becomes slow by 57 ms", rate: 200, long: 9 * s, changed: [2]time.Duration{s, 5 * s},
			first: upstreamtest.Action{Delay: 60 * ms}, left: 2 * s, on: 3 * s,
		},
		{
			name: "becomes slow by 297 ms", rate: 200, long: 9 * s, changed: [2]time.Duration{s, 5 * s},
			first: upstreamtest.Action{Delay: 300 * ms}, left: 2 * s, on: 3 * s,
		},
		{
			name: "becomes slow by 697 ms", rate: 200, long: 9 * s, changed: [2]time.Duration{s, 5 * s},
			first: upstreamtest.Action{Delay: 700 * ms}, left: 2 * s, on: 3 * s,
		},
		{
			name: "answers only probes", rate: 200, long: 9 * s, changed: [2]time.Duration{s, 5 * s},
			first: upstreamtest.Action{Delay: 3 * ms, Drop: true}, left: 2 * s, on: 3 * s,
		},
		{name: "1/s, 3 % slow names", rate: 1, long: 500 * s, slow: 0.03},
		{name: "1/s, 10 slow names in a row", rate: 1, long: 500 * s, burst: [2]time.Duration{50 * s, 60 * s}},
		{
			name: "1/s, becomes slow by 57 ms", rate: 1, long: 300 * s, changed: [2]time.Duration{20 * s, 120 * s},
			first: upstreamtest.Action{Delay: 60 * ms}, left: 20 * s, on: 30 * s,
		},
		{
			name: "1/s, becomes slow by 297 ms", rate: 1, long: 300 * s, changed: [2]time.Duration{20 * s, 120 * s},
			first: upstreamtest.Action{Delay: 300 * ms}, left: 20 * s, on: 30 * s,
		},
		{
			name: "1/s, answers only probes", rate: 1, long: 300 * s, changed: [2]time.Duration{20 * s, 120 * s},
			first: upstreamtest.Action{Delay: 3 * ms, Drop: true}, left: 20 * s, on: 30 * s,
		},
		{name: "1 in 5 s, 3 % slow names", rate: 0.2, long: 2500 * s, slow: 0.03},
		// A client that controls the servers of its names can make them slow at one upstream alone.
		{name: "10 % names slow at the fastest alone", rate: 200, long: 6 * s, slow: 0.1, at: 1},
		// An upstream cannot attract queries by what it does not resolve.
		{name: "the other refuses at once", rate: 200, long: 6 * s, second: refuse},
		{name: "the other has 10 % of answers at once", rate: 200, long: 6 * s, second: atOnce(0.1), most: 20},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.slower = max(tt.slower, 1)
			most := tt.most
			if most == 0 {
				most = 5
			}
			baseline := tt.play(t, upstream.Sequential, 0)
			want := baseline.waits[len(baseline.waits)/2]
			var worst, worstSlow, worstBack float64
			var median time.Duration
			for seed := range proctest.OrdinaryOrSoak[uint64](3, 10) {
				r := tt.play(t, upstream.Fastest, seed)
				if tt.left == 0 {
					worst = max(worst, r.share(0, tt.long, false))
					median = max(median, r.waits[len(r.waits)/2])
					continue
				}
				worstSlow = max(worstSlow, r.share(tt.changed[0]+tt.left, tt.changed[1], true))
				worstBack = max(worstBack, r.share(tt.changed[1]+tt.on, tt.long, false))
			}
			if tt.left == 0 {
				t.Logf("| %s | %.1f %% | %v |", tt.name, worst, median)
			} else {
				t.Logf("| %s | %.1f %% | %.1f %% |", tt.name, worstSlow, worstBack)
			}
			if worst > most {
				t.Errorf("%.1f %% went to a slower server, want %.0f at most", worst, most)
			}
			if worstSlow > most {
				t.Errorf("%.1f %% went to the first %v after it had become slow, want %.0f at most", worstSlow, tt.left, most)
			}
			if worstBack > most {
				t.Errorf("%.1f %% went to a slower server %v after the first was fast again, want %.0f at most", worstBack, tt.on, most)
			}
			if median > want*11/10 {
				t.Errorf("median %v, want that of the policy sequential, %v", median, want)
			}
		})
	}
}

// Exploratory queries are few, and no client waits for them.
func TestExploration(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	tests := []struct {
		name        string
		policy      upstream.Policy
		every       time.Duration // between queries
		other       upstreamtest.Action
		least, most uint64 // of 1000 queries
	}{
		{name: "many queries", every: 5 * ms, other: after(25*ms, one("192.0.2.20")), least: 8, most: 10},
		{name: "few queries", every: time.Second, other: after(25*ms, one("192.0.2.20")), least: 80, most: 92},
		{name: "silent", every: 5 * ms, other: upstreamtest.Action{Drop: true}, least: 0, most: 0},
		{name: "sequential", policy: upstream.Sequential, every: 5 * ms, other: after(25*ms, one("192.0.2.20"))},
		{name: "random", policy: upstream.Random, every: 5 * ms, other: after(25*ms, one("192.0.2.20"))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newThreeServers(t, tt.policy, after(3*ms, one("192.0.2.10")), tt.other).pool
				for range 2 { // each is measured
					ask(t, p)
				}
				late := 0
				for range 1000 {
					start := time.Now()
					ask(t, p)
					if time.Since(start) > 3*ms {
						late++
					}
					time.Sleep(time.Until(start.Add(tt.every)))
				}
				servers := p.Stats().Servers
				if n := servers[1].Explored; n < tt.least || n > tt.most || servers[0].Explored > 0 {
					t.Errorf("explored %d and %d times, want 0, and %d to %d", servers[0].Explored, n, tt.least, tt.most)
				}
				if tt.policy == upstream.Fastest && late > 0 {
					t.Errorf("%d clients waited longer than for the fastest", late)
				}
				if tt.policy == upstream.Fastest && servers[0].Won+servers[1].Won > 1 {
					t.Errorf("won %d and %d, want no exploratory query among hedges and retries", servers[0].Won, servers[1].Won)
				}
			})
		})
	}
}
