// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/kernelhits"
)

const mib = 1 << 20

func TestDivideMemory(t *testing.T) {
	t.Parallel()
	type want struct {
		Go, Snapshot      int64
		Inflight, Waiting int
		Readers, Buffer   int
		What, Hint        string
	}
	tests := []struct {
		name   string
		limit  int64
		procs  int // 0: two
		change func(*config.Config)
		want   want
	}{
		{name: "no limit", limit: 0, want: want{Inflight: 4096, Waiting: 16384, Readers: 2}},
		{name: "many cores, no limit", procs: 64, want: want{Inflight: 4096, Waiting: 16384, Readers: 64}},
		{
			name: "many cores", procs: 64, limit: 96 * mib, change: func(c *config.Config) {
				c.Cache.Size = 32 * mib
				c.Listen.Addresses = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("10.96.0.10")}
			},
			want: want{Go: 51 * mib, Inflight: 4096, Waiting: 16384, Readers: 6, Buffer: mib / 6},
		},
		{name: "room for everything", limit: 256 * mib, want: want{Go: 256*mib - 256*mib/10 - 64*mib, Inflight: 4096, Waiting: 16384, Readers: 2, Buffer: 256 * mib / 96}},
		{name: "lower bounds", limit: 96 * mib, want: want{Go: 19 * mib, Inflight: 1686, Waiting: 6746, Readers: 2, Buffer: mib}},
		{
			name: "half of both", limit: 64 * mib, change: func(c *config.Config) { c.Cache.Size = 32 * mib },
			want: want{Go: 19 * mib, Inflight: 1686, Waiting: 6746, Readers: 2, Buffer: 64 * mib / 96},
		},
		{
			name: "answers in the kernel", limit: 256 * mib, change: func(c *config.Config) { c.Kernel.Hits = config.KernelAuto },
			want: want{Go: 256*mib - 256*mib/10 - 64*mib - kernelhits.Memory(4*mib), Inflight: 4096, Waiting: 16384, Readers: 2, Buffer: 256 * mib / 96},
		},
		{
			name: "snapshots on a tmpfs", limit: 144 * mib,
			change: func(c *config.Config) { c.Snapshot.Folder, c.Snapshot.Size = "/dev/shm", 16*mib },
			want:   want{Go: 144*mib - 144*mib/10 - 96*mib, Snapshot: 32 * mib, Inflight: 4031, Waiting: 16126, Readers: 2, Buffer: 144 * mib / 96},
		},
		{
			name: "the cache is too large", limit: 80 * mib,
			want: want{
				Go: 12 * mib, Inflight: 562, Waiting: 2248, Readers: 2, Buffer: 80 * mib / 96,
				What: "the container's limit of 80 MiB leaves 3 MiB beside cache.size 64 MiB, but 14.9 MiB are needed: the kernel may kill the process",
				Hint: "raise the limit to 92 MiB, or set cache.size to 52Mi",
			},
		},
		{
			name: "no cache is small enough", limit: 20 * mib,
			want: want{
				Go: 12 * mib, Inflight: 562, Waiting: 2248, Readers: 2, Buffer: 20 * mib / 96,
				What: "the container's limit of 20 MiB leaves 0 MiB beside cache.size 64 MiB, but 14.9 MiB are needed: the kernel may kill the process",
				Hint: "raise the limit to 92 MiB",
			},
		},
		{
			name: "snapshots beside too large a cache", limit: 96 * mib,
			change: func(c *config.Config) { c.Snapshot.Folder, c.Snapshot.Size = "/dev/shm", 16*mib },
			want: want{
				Go: 12 * mib, Snapshot: 32 * mib, Inflight: 562, Waiting: 2248, Readers: 2, Buffer: mib,
				What: "the container's limit of 96 MiB leaves 0 MiB beside cache.size 64 MiB and snapshots of 32 MiB, but 14.9 MiB are needed: the kernel may kill the process",
				Hint: "raise the limit to 124 MiB, or set cache.size to 36Mi",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := config.Default(config.Agent)
			cfg.Cache.Size = 64 * mib
			cfg.Limits.Inflight, cfg.Limits.Waiting = 4096, 16384
			if tt.change != nil {
				tt.change(&cfg)
			}
			s := shareOut(tt.limit, max(2, tt.procs), &cfg)
			got := want{Go: s.goLimit, Snapshot: s.snapshot, Inflight: s.Inflight, Waiting: s.Waiting, Readers: s.Readers, Buffer: s.Buffer()}
			if p := s.problem(); p != nil {
				got.What, got.Hint = p.What, p.Hint
			}
			assert.Same(t, "got", tt.want, got)
		})
	}
}

func TestMemorySessions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit          int64
		all, perClient int
		held           int64
		namespace      int64
	}{
		{limit: 0, all: 1024, perClient: 128},
		{limit: 8 * mib, all: 96, perClient: 24, held: 3 * mib / 4, namespace: 3 * mib},
		{limit: 96 * mib, all: 152, perClient: 38, held: 19 * mib / 16, namespace: 19 * mib / 4},
		{limit: 512 * mib, all: 1024, perClient: 128, held: (512*mib - 512*mib/10 - 64*mib) / 16, namespace: (512*mib - 512*mib/10 - 64*mib) / 4},
	} {
		cfg := config.Default(config.Agent)
		cfg.Limits.TCPSessions, cfg.Limits.TCPPerClient = 1024, 128
		cfg.Cache.Size = 64 * mib
		cfg.Listen.Addresses = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("10.96.0.10")}
		s := shareOut(tt.limit, 2, &cfg)
		if all, perClient := s.Sessions(&cfg.Limits); all != tt.all || perClient != tt.perClient {
			t.Errorf("limit %d: %d sessions, %d of a client, want %d and %d", tt.limit, all, perClient, tt.all, tt.perClient)
		}
		assert.Equal(t, fmt.Sprintf("limit %d: bytes held for slow clients of one address", tt.limit), tt.held, s.Held())
		assert.Equal(t, fmt.Sprintf("limit %d: bytes for a namespace", tt.limit), tt.namespace, s.Namespace())
	}
}

// With subscribers, sessions have twice the memory, and subscriptions a quarter.
func TestMemoryPush(t *testing.T) {
	t.Parallel()
	cfg := config.Default(config.Resolver)
	cfg.Limits.TCPSessions, cfg.Limits.TCPPerClient = 8192, 128
	cfg.Push.Clients = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	s := shareOut(512*mib, 2, &cfg)
	all, _ := s.Sessions(&cfg.Limits)
	assert.Equal(t, "sessions", int(s.goLimit/4/(16<<10)), all)
	assert.Equal(t, "bytes of subscriptions", s.goLimit/4, s.Push())
	s = shareOut(0, 2, &cfg)
	assert.Equal(t, "without a limit", int64(256*mib), s.Push())
}

// A heap near its limit is a problem, too, such as one filled by the cluster's names.
func TestHeapNearLimit(t *testing.T) {
	t.Parallel()
	cfg := config.Default(config.Agent)
	cfg.Cache.Size = 64 * mib
	for _, tt := range []struct {
		limit, live int64
		want        string
	}{
		{limit: 0, live: 500 * mib},
		{limit: 96 * mib, live: 10 * mib},
		{
			limit: 96 * mib, live: 11 * mib,
			want: "the live heap is 11 MiB of the 10.5 MiB left beside cache.size 64 MiB: the garbage collector runs all the time",
		},
	} {
		s := shareOut(tt.limit, 2, &cfg)
		got := ""
		if p := s.heapProblem(tt.live); p != nil {
			got = p.What
		}
		assert.Equal(t, fmt.Sprintf("limit %d, %d live", tt.limit, tt.live), tt.want, got)
	}
}

// Following a hint fixes the problem.
func TestMemoryHints(t *testing.T) {
	t.Parallel()
	cfg := config.Default(config.Agent)
	for limit := int64(16 * mib); limit < 600*mib; limit += 7 * mib {
		for size := int64(mib); size < 512*mib; size = size*2 + mib {
			cfg.Cache.Size = size
			s := shareOut(limit, 4, &cfg)
			p := s.problem()
			if p == nil {
				continue
			}
			raise, rest, _ := strings.Cut(strings.TrimPrefix(p.Hint, "raise the limit to "), " MiB")
			other := shareOut(whole(t, raise)*mib, 4, &cfg)
			if p := other.problem(); p != nil {
				t.Errorf("limit %d, cache %d: raised to %s MiB there is still: %s", limit, size, raise, p.What)
			}
			smaller, ok := strings.CutPrefix(rest, ", or set cache.size to ")
			if !ok {
				continue
			}
			less := cfg
			less.Cache.Size = whole(t, strings.TrimSuffix(smaller, "Mi")) * mib
			other = shareOut(limit, 4, &less)
			if p := other.problem(); p != nil {
				t.Errorf("limit %d, cache %d: with a cache of %s there is still: %s", limit, size, smaller, p.What)
			}
		}
	}
}

func whole(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	assert.NoError(t, err)
	return n
}

// An early log notes whether it was written to after the state that it reports was published.
type early struct {
	bytes.Buffer
	known  func() *Share
	before *Share
	late   bool
}

// Write implements io.Writer.
func (l *early) Write(p []byte) (int, error) {
	l.late = l.late || l.known() != l.before
	return l.Buffer.Write(p)
}

// The container's limit may change, vanish or be hidden while the agent runs, and GOMEMLIMIT wins.
func TestMemoryUse(t *testing.T) {
	t.Parallel()
	type step struct {
		limit uint64
		err   error
		set   int64 // the Go runtime's limit after it; 0: it was left as it is
		same  bool  // nothing has changed
		log   string
	}
	hidden := errors.New("hidden")
	tests := []struct {
		name  string
		env   string
		steps []step
	}{
		{name: "a limit that changes", steps: []step{
			{limit: 96 * mib, set: 19 * mib, log: "memory divided"},
			{limit: 96 * mib, same: true},
			{limit: 144 * mib, set: 144*mib - 144*mib/10 - 64*mib, log: "memory divided"},
			{limit: 80 * mib, set: 12 * mib, log: "too little memory"},
			{err: memlimit.ErrNoLimit, set: math.MaxInt64},
			{err: memlimit.ErrNoLimit, same: true},
		}},
		{name: "no limit", steps: []step{{err: memlimit.ErrNoCgroup}, {err: memlimit.ErrNoCgroup, same: true}}},
		{name: "not known at first", steps: []step{{err: hidden, log: "memory limit failed"}, {limit: 96 * mib, set: 19 * mib}}},
		{name: "not known later", steps: []step{{limit: 96 * mib, set: 19 * mib}, {err: hidden, set: 19 * mib, log: "memory limit failed"}, {err: hidden, same: true}}},
		{name: "the environment wins", env: "30MiB", steps: []step{{limit: 96 * mib, log: "environment=30MiB"}, {limit: 80 * mib, log: "too little memory"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := config.Default(config.Agent)
			cfg.Cache.Size = 64 * mib
			log := &early{}
			var now step
			set := int64(0)
			m := &Keeper{
				limit:      func() (uint64, error) { return now.limit, now.err },
				setGoLimit: func(limit int64) int64 { set = limit; return 0 },
				env:        tt.env, log: slog.New(slog.NewTextHandler(log, nil)),
				advise: func() error { return nil },
			}
			log.known = m.share.Load
			for i, s := range tt.steps {
				now, set = s, 0
				log.Reset()
				log.before = m.share.Load()
				changed := m.Update(t.Context(), &cfg)
				if log.late {
					t.Errorf("step %d: /status could report it before the log did", i)
				}
				if changed == (s.same || i == 0) || set != s.set {
					t.Errorf("step %d: changed %t, the runtime's limit set to %d, want %d", i, changed, set, s.set)
				}
				if got := log.String(); !strings.Contains(got, s.log) || s.same && got != "" {
					t.Errorf("step %d: the log has %q, want %q in it", i, got, s.log)
				}
			}
		})
	}
}
