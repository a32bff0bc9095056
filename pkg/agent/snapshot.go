// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/watch"
	"github.com/nodecache/node-cache/pkg/zone"
)

// snapshots saves the agent's state for the next start.
type snapshots struct { // identifies this agent's files
	writer  string // names this agent's files
	log     *slog.Logger
	folder  func(path string) snapshot.Folder
	clocks  func() snapshot.ClockState
	changed chan struct{} // signals a new configuration
	busy    chan struct{} // semaphore: holds a value while a save runs

	mu           sync.Mutex // guards stats
	stats        snapshot.Stats
	zoneTooLarge bool // the zone did not fit into the last snapshot
}

func newSnapshots(writer string, log *slog.Logger) *snapshots {
	return &snapshots{
		writer: writer, log: log, clocks: readClocks,
		folder:  func(path string) snapshot.Folder { return snapshot.Dir(path) },
		changed: make(chan struct{}, 1), busy: make(chan struct{}, 1),
	}
}

// read returns a copy of the stats.
func (s *snapshots) read() snapshot.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// load fills r, which is not in use yet, from the snapshot of an earlier agent, if there is a valid one.
func (s *snapshots) load(r *generation) {
	cfg := &r.config.Snapshot
	if cfg.Folder == "" {
		return
	}
	began := time.Now()
	loaded, err := s.restore(r)
	if err == nil {
		debug.FreeOSMemory() // releases the file's memory: an agent that answers from its cache may not collect garbage for minutes
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		loaded.Outcome = snapshot.OutcomeNone
		s.log.Info("no snapshot", "folder", cfg.Folder)
	case err != nil:
		loaded = snapshot.Loaded{Outcome: snapshot.OutcomeRefused, Reason: err.Error()}
		s.log.Warn("snapshot refused", "err", err, "hint", snapshotHint(err))
	default:
		loaded.Outcome = snapshot.OutcomeLoaded
		s.log.Info("snapshot loaded", "folder", cfg.Folder, "age", loaded.Age.Round(time.Second), "answers", loaded.Entries,
			"objects", loaded.Objects, "took", time.Since(began).Round(time.Microsecond))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Loaded = loaded
}

// snapshotHint returns the hint of a snapshot error, "" if it has none.
func snapshotHint(err error) string {
	if known, ok := errors.AsType[*snapshot.Error](err); ok {
		return known.Hint
	}
	return ""
}

// restore does the work of load. After an error r is unchanged.
func (s *snapshots) restore(r *generation) (loaded snapshot.Loaded, err error) {
	defer func() {
		if defect := recover(); defect != nil {
			err = s.recordPanic("reading a snapshot", defect, debug.Stack())
		}
		if err != nil {
			r.cache.Flush([]byte{0})
		}
	}()
	cfg := &r.config.Snapshot
	snap, err := snapshot.Load(s.folder(cfg.Folder), cfg.Size)
	if err != nil {
		return loaded, err
	}
	if loaded.Age, err = snap.Age(s.clocks(), cfg.MaxAge); err != nil {
		return loaded, err
	}
	if err := errors.Join(snap.CheckVersion(snapshot.Cache, cache.DumpVersion), snap.CheckVersion(snapshot.Zone, zone.DumpVersion), snap.CheckVersion(snapshot.Central, centralVersion)); err != nil {
		return loaded, err
	}
	loaded.Entries, err = r.cache.Restore(snap.Records(snapshot.Cache), loaded.Age, time.Now(), r.cluster.owner())
	if err != nil {
		return loaded, snap.RecordError(snapshot.Cache, err)
	}
	purgeNoCache(r, nil)
	useCentral, err := readCentral(r, snap.Records(snapshot.Central), loaded.Age, cfg.MaxAge, time.Now())
	if err != nil {
		return loaded, snap.RecordError(snapshot.Central, err)
	}
	loaded.Objects, err = s.restoreZone(r, snap, loaded.Age)
	if err != nil {
		return loaded, snap.RecordError(snapshot.Zone, err)
	}
	useCentral()
	return loaded, nil
}

var errPanic = errors.New("internal error: the log has the stack trace")

// recordPanic counts and logs a recovered panic and returns the error for the caller.
func (s *snapshots) recordPanic(doing string, panicked any, stack []byte) error {
	s.mu.Lock()
	s.stats.Panics++
	s.mu.Unlock()
	s.log.Error("recovered from a panic", "where", "snapshot", "doing", doing, "panic", fmt.Sprint(panicked), "stack", string(stack))
	return errPanic
}

// restoreZone restores the cluster objects, unless they are too old or the configuration selects other
// objects now.
func (s *snapshots) restoreZone(r *generation, snap *snapshot.Snapshot, passed time.Duration) (objects int, err error) {
	if r.cluster == nil || r.cluster.events == nil {
		return 0, nil
	}
	next, stop := iter.Pull(snap.Records(snapshot.Zone))
	scope, there := next()
	stop()
	if !there {
		return 0, nil
	}
	if string(scope) != zoneScope(r) {
		s.log.Info("snapshot's cluster objects skipped", "err", "the cluster configuration has changed")
		return 0, nil
	}
	restored, err := r.cluster.events.Restore(skipFirst(snap.Records(snapshot.Zone)), passed, r.config.Snapshot.MaxAge, time.Now())
	if errors.Is(err, zone.ErrTooOld) {
		s.log.Info("snapshot's cluster objects skipped", "err", err)
		return 0, nil
	}
	return restored.Objects, err
}

// skipFirst returns the sequence without its first element.
func skipFirst(all iter.Seq[[]byte]) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		first := true
		for record := range all {
			if !first && !yield(record) {
				return
			}
			first = false
		}
	}
}

// zoneScope describes the objects that r's source selects, and their cluster.
func zoneScope(r *generation) string {
	c := &r.config.Cluster
	return fmt.Sprintf("source %q, resolver %s, endpoints %s, pods %t, namespaces %q, services %q, namespaces %q",
		r.cluster.sourceName(c), c.Resolver, c.Endpoints, c.Pods == config.PodsVerified, c.Namespaces, c.ServiceSelector, c.NamespaceSelector)
}

// centralVersion is the version of the records of dumpCentral. The records are text: the service's name, the
// age of the data in ns, and then addresses. An endpoint's address is followed by a space and its topology
// zone; a service address stands alone.
const centralVersion = 1

var errCentral = errors.New("invalid record")

// dumpCentral emits the last known addresses of the central resolver's service, nothing if there are none.
func dumpCentral(r *generation, now time.Time, emit func([]byte) error) error {
	if r.cluster == nil || r.cluster.centralEndpoints == nil {
		return nil
	}
	ready, own, age, known := r.cluster.centralEndpoints.lastKnown(now)
	if !known {
		return nil
	}
	records := []string{centralScope(r), strconv.FormatInt(int64(age), 10)}
	for _, s := range ready {
		records = append(records, s.Addr.String()+" "+s.Zone)
	}
	for _, addr := range own {
		records = append(records, addr.String())
	}
	for _, record := range records {
		if err := emit([]byte(record)); err != nil {
			return err
		}
	}
	return nil
}

// centralScope names the service and its cluster.
func centralScope(r *generation) string {
	c := &r.config.Cluster
	return c.Central.Service.String() + " of " + r.cluster.sourceName(c)
}

// readCentral reads the records of dumpCentral. The returned function makes the central resolver's pool use
// them until the watch reports endpoints. It does nothing if the records are of another service or older than
// most.
func readCentral(r *generation, records iter.Seq[[]byte], passed, most time.Duration, now time.Time) (use func(), err error) {
	use = func() {}
	lines := make([]string, 0, 8)
	for record := range records {
		lines = append(lines, string(record))
	}
	if len(lines) == 0 || r.cluster == nil || r.cluster.centralEndpoints == nil || lines[0] != centralScope(r) {
		return use, nil
	}
	if len(lines) == 1 {
		return nil, errCentral
	}
	age, err := strconv.ParseUint(lines[1], 10, 62)
	if err != nil {
		return nil, errCentral
	}
	var ready []watch.Server
	var own []netip.AddrPort
	for _, line := range lines[2:] {
		text, zone, endpoint := strings.Cut(line, " ")
		addr, err := netip.ParseAddrPort(text)
		switch {
		case err != nil:
			return nil, errCentral
		case endpoint:
			ready = append(ready, watch.Server{Addr: addr, Zone: zone})
		default:
			own = append(own, addr)
		}
	}
	if time.Duration(age) > most-passed {
		return use, nil
	}
	return func() { r.cluster.centralEndpoints.restore(ready, own, now.Add(-time.Duration(age)-passed)) }, nil
}

// lastKnown returns the latest endpoints and their age. The age is zero once the watch has confirmed them.
func (n *centralEndpoints) lastKnown(now time.Time) (ready []watch.Server, own []netip.AddrPort, age time.Duration, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.restoredAt.IsZero() {
		age = max(0, now.Sub(n.restoredAt))
	}
	return slices.Clone(n.ready), slices.Clone(n.own), age, n.known
}

// restore stores the endpoints of a snapshot, unless the watch has reported some.
func (n *centralEndpoints) restore(ready []watch.Server, own []netip.AddrPort, since time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known {
		return
	}
	n.known, n.ready, n.own, n.restoredAt = true, ready, own, since
	n.setLocked()
}

// SnapshotStatus describes the snapshots since the start.
type SnapshotStatus struct {
	Loaded    string `json:"loaded"`            // a snapshot.Outcome
	Refused   string `json:"refused,omitempty"` // why it was refused
	Age       string `json:"age,omitempty"`     // age at the start of the loaded snapshot
	Answers   int    `json:"answers"`           // answers restored
	Objects   int    `json:"objects"`           // cluster objects restored
	Saved     string `json:"saved"`             // time since the last save, or "never"
	Bytes     int64  `json:"bytes"`             // size of the last one
	Failed    uint64 `json:"failed"`            // failed saves since the start
	LastError string `json:"lastError,omitempty"`
}

// snapshotStatus returns nil if there are no snapshots.
func snapshotStatus(st *snapshot.Stats, now time.Time) *SnapshotStatus {
	if st == nil {
		return nil
	}
	s := &SnapshotStatus{
		Loaded: cmp.Or(st.Loaded.Outcome, snapshot.OutcomeNone), Refused: st.Loaded.Reason,
		Answers: st.Loaded.Entries, Objects: st.Loaded.Objects,
		Saved: "never", Bytes: st.Bytes, Failed: st.Failed, LastError: st.LastError,
	}
	if s.Loaded == snapshot.OutcomeLoaded {
		s.Age = st.Loaded.Age.Round(time.Second).String()
	}
	if !st.LastSaved.IsZero() {
		s.Saved = now.Sub(st.LastSaved).Round(time.Second).String()
	}
	return s
}

// snapshotProblems reports failed saves: the next start would load an older snapshot.
func snapshotProblems(s *SnapshotStatus) []Problem {
	if s == nil || s.LastError == "" {
		return nil
	}
	return []Problem{{
		Where: "snapshot", What: s.LastError,
		Hint: "check that snapshot.folder is writable and has free space; the agent retries by itself",
	}}
}
