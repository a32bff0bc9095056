// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/kernel"
	"github.com/nodecache/node-cache/pkg/status"
)

// memoryPeriod is how often the container's limit is read: it can change while the agent runs.
const memoryPeriod = 10 * time.Second

// memory keeps the process within the limit of its container.
type memory struct {
	limit      func() (uint64, error) // of the container
	setGoLimit func(int64) int64      // sets the Go runtime's limit
	env        string                 // GOMEMLIMIT of the environment, which takes precedence; empty: not set
	log        *slog.Logger
	advise     func() error // disables readahead for the program's pages

	mu    sync.Mutex // guards changes of share
	share atomic.Pointer[share]
}

func newMemory(log *slog.Logger) *memory {
	return &memory{limit: containerLimit, setGoLimit: debug.SetMemoryLimit, env: os.Getenv("GOMEMLIMIT"), log: log, advise: disableReadahead}
}

// update divides the container's current memory for cfg, and reports whether a share changed.
func (m *memory) update(ctx context.Context, cfg *config.Config) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.share.Load()
	limit, err := m.limit()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		limit, err = 0, nil
	case err != nil && old != nil:
		limit = uint64(old.limit) // an old limit is better than none
	}
	next := shareOut(int64(min(limit, math.MaxInt64)), runtime.GOMAXPROCS(0), cfg)
	if err != nil {
		next.limitError = err.Error()
	}
	if old != nil && *old == next {
		return false
	}
	m.apply(ctx, cfg, old, &next)
	m.share.Store(&next) // last: a reader of share finds it applied and logged
	return old != nil
}

// apply sets the Go runtime's limit, disables readahead, and logs the new shares.
func (m *memory) apply(ctx context.Context, cfg *config.Config, old, next *share) {
	if old == nil {
		old = &share{}
	}
	if m.env == "" && (next.goLimit > 0 || old.goLimit > 0) {
		limit := next.goLimit
		if limit == 0 {
			limit = math.MaxInt64
		}
		m.setGoLimit(limit)
	}
	if next.limitError != "" && old.limitError == "" {
		m.log.WarnContext(ctx, "reading the container's memory limit failed", "err", next.limitError)
	}
	if next.limit == 0 {
		return
	}
	if old.limit == 0 {
		if err := m.advise(); err != nil {
			m.log.DebugContext(ctx, "disabling readahead failed", "err", err)
		}
	}
	sessions, _ := next.sessions(&cfg.Limits)
	m.log.InfoContext(ctx, "memory divided", "limit", next.limit, "cache", next.cache, "snapshot", next.snapshot,
		"go", next.goLimit, "environment", m.env, "inflight", next.inflight, "waiting", next.waiting, "tcp_sessions", sessions)
	if p := next.problem(); p != nil {
		m.log.WarnContext(ctx, "too little memory", "problem", p.What, "hint", p.Hint)
	}
}

// watch reads the container's limit every memoryPeriod. It calls changed after a share has changed.
func (m *memory) watch(ctx context.Context, cfg func() config.Config, changed func(context.Context)) {
	ticker := time.NewTicker(memoryPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			current := cfg()
			if m.update(ctx, &current) {
				changed(ctx)
			}
		}
	}
}

// status returns the status for /status and the metrics. It is cheap.
func (m *memory) status() status.Memory {
	s := m.share.Load()
	status := status.Memory{
		Cgroup: s.limit, Cache: s.cache, Snapshot: s.snapshot, GoUsed: goUsed(), By: status.NoLimit, Inflight: s.inflight, Waiting: s.waiting,
	}
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		status.GoLimit, status.By = limit, "cgroup"
	}
	if m.env != "" {
		status.By = "GOMEMLIMIT"
	}
	return status
}

// goUsed returns the memory that the Go runtime holds, counted as for its limit.
func goUsed() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}

// problems reports what is wrong with the memory.
func (m *memory) problems() (list []status.Problem) {
	s := m.share.Load()
	if p := s.problem(); p != nil {
		list = append(list, *p)
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if p := s.heapProblem(int64(live[0].Value.Uint64())); p != nil && m.env == "" {
		list = append(list, *p)
	}
	return list
}

// MemoryProblem reports why this process's container has too little memory for cfg. It is nil if the memory
// suffices or has no limit.
func MemoryProblem(cfg *config.Config) *status.Problem {
	limit, err := containerLimit()
	if err != nil {
		return nil
	}
	s := shareOut(int64(min(limit, math.MaxInt64)), runtime.GOMAXPROCS(0), cfg)
	return s.problem()
}

// containerLimit returns the memory limit of this process's container in bytes. Without a limit the error is
// one of memlimit's.
func containerLimit() (uint64, error) { return lowerLimit("/proc/self", memlimit.FromCgroup) }

// lowerLimit returns the lower of hard, at which the kernel kills, and memory.high of cgroup v2. Above
// memory.high the kernel delays each page allocation, which an agent does not survive either. Kubelets with
// MemoryQoS set it.
func lowerLimit(self string, hard func() (uint64, error)) (uint64, error) {
	limit, err := hard()
	high := lowestHigh(self)
	if high < math.MaxUint64 && errors.Is(err, memlimit.ErrNoLimit) {
		limit, err = high, nil
	}
	return min(limit, high), err
}

// lowestHigh returns the lowest memory.high of the process's cgroup and its visible ancestors,
// [math.MaxUint64] without any. Unreadable files are no bound: cgroup v1 has none.
func lowestHigh(self string) uint64 {
	lowest := uint64(math.MaxUint64)
	own, _ := os.ReadFile(filepath.Join(self, "cgroup"))
	mounts, _ := os.ReadFile(filepath.Join(self, "mountinfo"))
	path := unifiedPath(string(own))
	for line := range strings.Lines(string(mounts)) {
		mount, below, ok := unifiedMount(line, path)
		for ok {
			text, _ := os.ReadFile(filepath.Join(mount, below, "memory.high"))
			if high, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
				lowest = min(lowest, high)
			}
			ok = below != "."
			below = filepath.Dir(below)
		}
	}
	return lowest
}

// unifiedPath returns the path of a process's v2 cgroup from its /proc cgroup file; "" if it has none.
func unifiedPath(own string) string {
	for line := range strings.Lines(own) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return path
		}
	}
	return ""
}

// unifiedMount parses a line of mountinfo. It returns where cgroup v2 is mounted, and the path of the cgroup
// at path below the mount. ok is false if the cgroup is not visible there: the mount may show another part of
// the tree, or one above this process's namespace.
func unifiedMount(line, path string) (mount, below string, ok bool) {
	// 31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw
	left, right, ok := strings.Cut(line, " - ")
	fields := strings.Fields(left)
	if !ok || !strings.HasPrefix(right, "cgroup2 ") || len(fields) < 5 {
		return "", "", false
	}
	root := fields[3]
	if !filepath.IsAbs(path) || strings.HasPrefix(path, "/..") || strings.HasPrefix(root, "/..") {
		return "", "", false
	}
	below, err := filepath.Rel(root, path)
	return fields[4], below, err == nil && filepath.IsLocal(below)
}

// inMemory reports whether files in folder use this container's memory, because the folder is on a tmpfs. For
// a missing folder its parent decides.
func inMemory(folder string) bool {
	if _, err := os.Stat(folder); err != nil {
		folder = filepath.Dir(folder)
	}
	var fs unix.Statfs_t
	return unix.Statfs(folder, &fs) != nil || fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC
}

// disableReadahead makes the kernel read the program's own pages one at a time.
//
// When a container's memory gets scarce, the kernel drops these pages and reads them back with the disk's
// readahead. On some hosts the readahead is megabytes. It evicts the pages needed next, and the process
// stalls without ever being killed. A kernel that refuses the advice is left as it is.
func disableReadahead() error { return adviseProgram(unix.MADV_RANDOM) }

// unmapProgram unmaps the program's own pages. The kernel maps those again that are used.
//
// Half of the pages were used only at the start, by the initialisers of packages, or are near such ones. While they are mapped,
// they count as resident, and the kernel keeps them longer than other files when memory gets scarce.
func unmapProgram() error { return adviseProgram(unix.MADV_DONTNEED) }

// adviseProgram gives the kernel an advice on the program's code and constants.
func adviseProgram(advice uintptr) error {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	head := "" // first line of the current mapping
	for line := range strings.Lines(string(maps)) {
		changed, found := strings.CutPrefix(line, "Anonymous:")
		switch {
		case !strings.Contains(line, ":  "):
			head = strings.TrimSpace(line)
		case found && strings.TrimSpace(changed) == "0 kB" && strings.HasSuffix(head, " "+program):
			err = errors.Join(err, adviseMapping(head, advice))
		}
	}
	return err
}

// adviseMapping gives an advice on a mapping of the program, none of whose pages differ from the file, but not on a writable one.
// Without their pages, variables and relocated addresses would have their first values.
func adviseMapping(head string, advice uintptr) error {
	var from, to uintptr
	var permissions string
	if _, err := fmt.Sscanf(head, "%x-%x %s", &from, &to, &permissions); err != nil {
		return fmt.Errorf("reading the memory map: %w", err)
	}
	if strings.Contains(permissions, "w") {
		return nil
	}
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, advice); errno != 0 {
		return fmt.Errorf("advising the kernel: %w", errno)
	}
	return nil
}

// Shares of the container's memory. The numbers are measured, see docs/reliability.md.
const (
	// A tenth of the limit, at least minReserve, is reserved for memory that neither the cache nor the Go
	// runtime counts: program text, kernel structures, and data in socket buffers. Linux 6.18 reads 128 KiB and more around a page of
	// code that it dropped, whatever the advice. With a reserve of 10 MiB half of the runs read gigabytes.
	reservePart = 10
	minReserve  = 13 << 20
	// fixedGo is the Go runtime's memory without any query. Each UDP reader adds readerCost. All readers
	// together get 1/readerPart of the limit: a host of many cores has more of them than it needs.
	fixedGo    = 8 << 20
	readerCost = 256 << 10
	readerPart = 32
	// Socket receive buffers get 1/bufferPart of the limit.
	bufferPart = 24
	// sessionCost is the memory of an idle TCP session. All sessions get 1/sessionPart of the Go runtime's
	// limit: busy ones use two to three times as much, and the collector needs room beside them. One client
	// gets 1/clientPart of the sessions.
	sessionCost = 16 << 10
	sessionPart = 8
	clientPart  = 4
	// Unread responses and unfinished queries get 1/heldPart of the Go runtime's limit.
	heldPart = 8
	// A list from the API server gets 1/listPart of it.
	listPart = 2
	// minGo is the lowest Go limit: below it the collector would run all the time.
	minGo = 12 << 20
	// inFlightCost and waiterCost are the typical memory of a query to an upstream and of a client that waits
	// for it.
	inFlightCost = 2560
	waiterCost   = 448
	// Queries get livePart thirds of the Go runtime's limit minus fixedGo. The rest is for the collector,
	// which runs more often the less there is.
	livePart = 2
	// If the memory allows less than 1/leastBounds of limits.inflight and limits.waiting, it is too little.
	// The bounds are never lowered below leastPart of the configured ones.
	leastBounds = 4
	leastPart   = 0.1
)

// A share is the division of the memory, in bytes.
type share struct {
	limit      int64 // the container's; 0: none, or unknown
	cache      int64
	snapshot   int64
	kernel     int64  // of the answers in the kernel
	goLimit    int64  // the Go runtime's limit; 0: not set by the agent
	inflight   int    // queries to upstreams that fit, at most limits.inflight
	waiting    int    // waiting clients that fit, at most limits.waiting
	limitError string // why the container's limit is unknown

	procs, addresses int   // CPUs of the Go runtime, and listen addresses
	readers          int   // per address
	sockets          int   // of all addresses
	queryCost        int64 // memory of limits.inflight and limits.waiting
}

// shareOut divides limit bytes among the parts of a process with configuration cfg and procs CPUs.
func shareOut(limit int64, procs int, cfg *config.Config) share {
	s := share{limit: limit, cache: cfg.Cache.Size, procs: procs, addresses: max(1, len(cfg.Listen.Addresses))}
	s.queryCost = inFlightCost*int64(cfg.Limits.Inflight) + waiterCost*int64(cfg.Limits.Waiting)
	if cfg.Snapshot.Folder != "" && inMemory(cfg.Snapshot.Folder) {
		s.snapshot = 2 * cfg.Snapshot.Size // the new file is written beside the old one
	}
	if cfg.Kernel.Hits != config.KernelOff {
		s.kernel = kernel.Memory(cfg.Kernel.Size)
	}
	s.divide()
	part := s.queryPart()
	s.inflight, s.waiting = max(1, int(part*float64(cfg.Limits.Inflight))), max(1, int(part*float64(cfg.Limits.Waiting)))
	return s
}

// divide computes the shares from the limit.
func (s *share) divide() {
	s.readers = s.procs
	if s.limit > 0 {
		s.readers = max(1, min(s.procs, int(s.limit/readerPart/readerCost)/s.addresses))
		s.goLimit = max(minGo, s.goRoom())
	}
	s.sockets = s.readers * s.addresses
}

// goRoom returns what is left for the Go runtime. It may be negative.
func (s *share) goRoom() int64 {
	return s.limit - max(minReserve, s.limit/reservePart) - s.cache - s.snapshot - s.kernel
}

// queryPart returns the part of the configured bounds that fits, 0 to 1.
func (s *share) queryPart() float64 {
	if s.limit == 0 {
		return 1
	}
	return min(1, max(leastPart, float64(s.goLimit-s.fixed())*livePart/3/float64(s.queryCost)))
}

// fixed returns the Go runtime's memory without any query.
func (s *share) fixed() int64 { return fixedGo + readerCost*int64(s.sockets) }

// buffer returns the receive buffer of each socket in bytes, 0 for the kernel's default. The kernel uses
// twice as much.
func (s *share) buffer() int { return int(s.limit / bufferPart / 2 / int64(s.sockets)) }

// sessions returns the TCP sessions that fit, and those of one client, at most the configured ones.
func (s *share) sessions(cfg *config.Limits) (all, perClient int) {
	if s.limit == 0 {
		return cfg.TCPSessions, cfg.TCPPerClient
	}
	room := int(s.goLimit / sessionPart / sessionCost)
	return min(cfg.TCPSessions, room), min(cfg.TCPPerClient, room/clientPart)
}

// held returns the bytes that the TCP sessions of one address may hold for slow clients, 0 for no limit.
func (s *share) held() int64 { return s.goLimit / heldPart / int64(s.addresses) }

// namespace returns the bytes that the services and slices of one namespace may use, 0 for no limit.
func (s *share) namespace() int64 { return s.goLimit / status.NamespacePart }

// list returns the bytes that a list from the API server may have, 0 for the default.
func (s *share) list() int64 { return s.goLimit / listPart }

// heapProblem reports too many live bytes of heap, as in a large cluster. That is unknown in advance.
func (s *share) heapProblem(live int64) *status.Problem {
	if s.limit == 0 || live+s.fixed() <= s.goLimit {
		return nil
	}
	return &status.Problem{
		Where: "memory",
		What: fmt.Sprintf("the live heap is %s of the %s left beside cache.size %s%s: the garbage collector runs all the time",
			inMiB(live), inMiB(max(0, s.goLimit-s.fixed())), inMiB(s.cache), s.snapshotNote()),
		Hint: "raise the container's memory limit, or lower cache.size",
	}
}

// requiredGo returns the memory that the Go runtime needs to serve well.
func (s *share) requiredGo() int64 {
	return max(minGo, s.fixed()+s.queryCost*3/livePart/leastBounds)
}

// problem reports a limit that is too low.
func (s *share) problem() *status.Problem {
	if !s.tooSmall() {
		return nil
	}
	p := &status.Problem{Where: "memory", What: fmt.Sprintf("the container's limit of %s leaves %s beside cache.size %s%s, but %s are needed: the kernel may kill the process",
		inMiB(s.limit), inMiB(max(0, s.goRoom())), inMiB(s.cache), s.snapshotNote(), inMiB(s.requiredGo()))}
	p.Hint = "raise the limit to " + inMiB(s.minLimit())
	if fits := s.cache - (s.requiredGo() - s.goRoom()); fits >= cache.MinSize {
		p.Hint += fmt.Sprintf(", or set cache.size to %dMi", fits>>20)
	}
	return p
}

// tooSmall reports whether less memory is left than required.
func (s *share) tooSmall() bool { return s.limit > 0 && s.goRoom() < s.requiredGo() }

// minLimit returns the lowest sufficient limit, in whole MiB.
func (s *share) minLimit() int64 {
	const step = 1 << 20
	other := *s
	for other.limit = (s.cache + s.snapshot) / step * step; other.tooSmall(); other.divide() {
		other.limit += step
	}
	return other.limit
}

func (s *share) snapshotNote() string {
	if s.snapshot == 0 {
		return ""
	}
	return " and snapshots of " + inMiB(s.snapshot)
}

// inMiB formats bytes as MiB.
func inMiB(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
