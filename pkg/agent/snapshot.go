// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/zone"
)

// snapshots keeps what the agent knows for its next start.
type snapshots struct {
	writer  string // names this agent's files
	log     *slog.Logger
	folder  func(path string) snapshot.Folder
	moment  func() snapshot.Moment
	changed chan struct{} // the configuration is another
	busy    chan struct{} // holds something while one is made

	mu    sync.Mutex // guards stats
	stats snapshot.Stats
	large bool // of the last one: the zone did not fit
}

func newSnapshots(writer string, log *slog.Logger) *snapshots {
	return &snapshots{
		writer: writer, log: log, moment: thisMoment,
		folder:  func(path string) snapshot.Folder { return snapshot.Dir(path) },
		changed: make(chan struct{}, 1), busy: make(chan struct{}, 1),
	}
}

// read is the counters.
func (s *snapshots) read() snapshot.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// load fills r, of which nothing is in use yet, from the snapshot of an earlier agent, if there is one to be believed.
func (s *snapshots) load(r *running) {
	cfg := &r.config.Snapshot
	if cfg.Folder == "" {
		return
	}
	began := time.Now()
	loaded, err := s.restore(r)
	if err == nil {
		debug.FreeOSMemory() // of the file: an agent that answers from memory may not collect garbage for minutes
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		loaded.Outcome = snapshot.OutcomeNone
		s.log.Info("no snapshot, starting cold", "folder", cfg.Folder)
	case err != nil:
		loaded = snapshot.Loaded{Outcome: snapshot.OutcomeRefused, Why: err.Error()}
		s.log.Warn("snapshot refused, starting cold", "err", err, "hint", hintOf(err))
	default:
		loaded.Outcome = snapshot.OutcomeLoaded
		s.log.Info("snapshot loaded", "folder", cfg.Folder, "age", loaded.Age.Round(time.Second), "answers", loaded.Entries,
			"objects", loaded.Objects, "took", time.Since(began).Round(time.Microsecond))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Loaded = loaded
}

// hintOf is what can be done about an error of package snapshot.
func hintOf(err error) string {
	if told, ok := errors.AsType[*snapshot.Error](err); ok {
		return told.Hint
	}
	return ""
}

// restore is load, with what came back. After an error r is as it was.
func (s *snapshots) restore(r *running) (loaded snapshot.Loaded, err error) {
	defer func() {
		if defect := recover(); defect != nil {
			err = s.defect("reading a snapshot", defect, debug.Stack())
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
	if loaded.Age, err = snap.Age(s.moment(), cfg.MaxAge); err != nil {
		return loaded, err
	}
	if err := errors.Join(snap.Version(snapshot.Cache, cache.DumpVersion), snap.Version(snapshot.Zone, zone.DumpVersion), snap.Version(snapshot.Central, centralVersion)); err != nil {
		return loaded, err
	}
	loaded.Entries, err = r.cache.Restore(snap.Records(snapshot.Cache), loaded.Age, time.Now(), r.cluster.owner())
	if err != nil {
		return loaded, snap.Refuse(snapshot.Cache, err)
	}
	dropUnkept(r, nil)
	useCentral, err := readCentral(r, snap.Records(snapshot.Central), loaded.Age, cfg.MaxAge, time.Now())
	if err != nil {
		return loaded, snap.Refuse(snapshot.Central, err)
	}
	loaded.Objects, err = s.restoreZone(r, snap, loaded.Age)
	if err != nil {
		return loaded, snap.Refuse(snapshot.Zone, err)
	}
	useCentral()
	return loaded, nil
}

var errDefect = errors.New("a defect, the log has its stack")

// defect counts and logs a panic that was recovered in doing something, and gives the error that it becomes.
func (s *snapshots) defect(doing string, panicked any, stack []byte) error {
	s.mu.Lock()
	s.stats.Panics++
	s.mu.Unlock()
	s.log.Error("recovered from a panic", "where", "snapshot", "doing", doing, "panic", fmt.Sprint(panicked), "stack", string(stack))
	return errDefect
}

// restoreZone puts back what was known of the cluster, unless that is too old, or the configuration asks for other
// objects now.
func (s *snapshots) restoreZone(r *running, snap *snapshot.Snapshot, passed time.Duration) (objects int, err error) {
	if r.cluster == nil || r.cluster.events == nil {
		return 0, nil
	}
	next, stop := iter.Pull(snap.Records(snapshot.Zone))
	scope, there := next()
	stop()
	if !there {
		return 0, nil
	}
	if string(scope) != scopeOf(r) {
		s.log.Info("the snapshot's view of the cluster is left out: it was made with another configuration of it")
		return 0, nil
	}
	restored, err := r.cluster.events.Restore(behindFirst(snap.Records(snapshot.Zone)), passed, r.config.Snapshot.MaxAge, time.Now())
	if errors.Is(err, zone.ErrTooOld) {
		s.log.Info("the snapshot's view of the cluster is left out", "err", err)
		return 0, nil
	}
	return restored.Objects, err
}

// behindFirst is a sequence without its first element.
func behindFirst(all iter.Seq[[]byte]) iter.Seq[[]byte] {
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

// scopeOf names the objects that the source of r tells of, and the cluster that they are of.
func scopeOf(r *running) string {
	c := &r.config.Cluster
	return fmt.Sprintf("source %q, resolver %s, endpoints %s, pods %t, namespaces %q, services %q, namespaces %q",
		r.cluster.sourceName(c), c.Resolver, c.Endpoints, c.Pods == config.PodsVerified, c.Namespaces, c.ServiceSelector, c.NamespaceSelector)
}
