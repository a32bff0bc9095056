// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/panics"
)

// Settings say where the snapshot is and which one is used.
type Settings struct {
	Folder string
	Size   int64         // maximum size in bytes
	MaxAge time.Duration // an older snapshot is not loaded
}

// A Keeper loads one snapshot and saves others, and counts both. A panic, or a file system that hangs, costs a snapshot, not the
// process.
type Keeper struct {
	Clocks func() ClockState        // reads the host's clocks, or virtual ones
	Open   func(path string) Folder // returns the [Dir] at path, or a fake

	writer string
	now    func() time.Time
	log    *slog.Logger
	busy   chan struct{} // semaphore: holds a value while a save runs
	panics atomic.Uint64

	mu    sync.Mutex // guards stats
	stats Stats
}

// NewKeeper returns a Keeper. writer consists of letters and digits and ends the names of temporary files, see [Job].
func NewKeeper(writer string, now func() time.Time, log *slog.Logger) *Keeper {
	return &Keeper{
		Clocks: func() ClockState { return readClocks(now()) }, Open: func(path string) Folder { return Dir(path) },
		writer: writer, now: now, log: log, busy: make(chan struct{}, 1),
	}
}

// readClocks returns a time and the host's other clocks.
func readClocks(now time.Time) ClockState {
	m := ClockState{Wall: now}
	var up unix.Timespec
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return m // the wall clock alone
	}
	id, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err == nil && len(id) == len(m.BootID) {
		copy(m.BootID[:], id)
		m.Uptime = time.Duration(up.Nano())
	}
	return m
}

// Stats returns a copy. It may be called from any goroutine.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	stats := k.stats
	stats.Panics = k.panics.Load()
	return stats
}

// Load reads the snapshot, if there is a valid one that is not too old, and calls restore with it. It reports whether all of that
// succeeded. It records what restore returns.
func (k *Keeper) Load(ctx context.Context, from Settings, restore func(s *Snapshot, age time.Duration) (Loaded, error)) bool {
	began := k.now()
	var loaded Loaded
	err := k.guard("reading a snapshot").Do(ctx, func() error {
		s, err := Load(k.Open(from.Folder), from.Size)
		if err != nil {
			return err
		}
		age, err := s.Age(k.Clocks(), from.MaxAge)
		if err == nil {
			loaded, err = restore(s, age)
		}
		loaded.Age = age
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		loaded = Loaded{Outcome: OutcomeNone}
		k.log.InfoContext(ctx, "no snapshot", "folder", from.Folder)
	case err != nil:
		loaded = Loaded{Outcome: OutcomeRefused, Reason: err.Error()}
		k.log.WarnContext(ctx, "snapshot refused", "err", err, "hint", hint.Of(err))
	default:
		debug.FreeOSMemory() // releases the file's memory: an agent that answers from its cache may not collect garbage for minutes
		loaded.Outcome = OutcomeLoaded
		k.log.InfoContext(ctx, "snapshot loaded", "folder", from.Folder, "age", loaded.Age.Round(time.Second), "answers", loaded.Entries,
			"objects", loaded.Objects, "took", k.now().Sub(began).Round(time.Microsecond))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Loaded = loaded
	return err == nil
}

func (k *Keeper) guard(doing string) panics.Guard {
	return panics.Guard{Where: "snapshot", Log: k.log.With("doing", doing), Count: &k.panics}
}

// abandonTimeout is how long Save waits for a canceled save, which ends between two writes.
const abandonTimeout = 300 * time.Millisecond

var errHangs = errors.New("the file system does not respond")

// Save saves a snapshot with the sections that fill writes. It returns when that is done, ctx has ended, or limit has passed. If the
// file system hangs, Save leaves the write running; until that ends, further calls of Save fail.
func (k *Keeper) Save(ctx context.Context, limit time.Duration, to Settings, fill func(ctx context.Context, w *Writer) error) {
	select {
	case k.busy <- struct{}{}:
	default:
		k.failed(ctx, errHangs)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := k.guard("making a snapshot").Do(ctx, func() error {
			began := k.now()
			n, err := Save(ctx, Job{
				Folder: k.Open(to.Folder), Writer: k.writer, At: k.Clocks(), MaxSize: to.Size,
				Fill: func(w *Writer) error { return fill(ctx, w) },
			})
			if err == nil {
				k.saved(ctx, n, k.now().Sub(began))
			}
			return err
		})
		<-k.busy
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		late := time.NewTimer(abandonTimeout)
		defer late.Stop()
		select { // a save that can end does so now
		case err = <-done:
		case <-late.C:
			err = errHangs
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) { // canceled: the agent stops and saves once more
		k.failed(ctx, err)
	}
}

// SaveNow waits for a running save, and then saves a snapshot as Save does. It returns why there is no new snapshot.
func (k *Keeper) SaveNow(ctx context.Context, limit time.Duration, to Settings, fill func(ctx context.Context, w *Writer) error) error {
	select {
	case k.busy <- struct{}{}:
		<-k.busy
	case <-ctx.Done():
		return errHangs
	}
	before := k.Stats().Saved
	k.Save(ctx, limit, to, fill)
	if now := k.Stats(); now.Saved == before {
		return fmt.Errorf("saving a snapshot: %s", now.LastError)
	}
	return nil
}

// saved records a snapshot. It logs at info level after a failure.
func (k *Keeper) saved(ctx context.Context, n int64, took time.Duration) {
	k.mu.Lock()
	level := slog.LevelDebug
	if k.stats.LastError != "" {
		level = slog.LevelInfo
	}
	k.stats.Saved++
	k.stats.LastSaved, k.stats.LastError, k.stats.Bytes, k.stats.Duration = k.now(), "", n, took
	k.mu.Unlock()
	k.log.Log(ctx, level, "snapshot saved", "bytes", n, "took", took.Round(time.Microsecond))
}

// failed records a failed save and logs each new error.
func (k *Keeper) failed(ctx context.Context, err error) {
	k.mu.Lock()
	news := k.stats.LastError != err.Error()
	k.stats.Failed++
	k.stats.LastError = err.Error()
	k.mu.Unlock()
	if news {
		k.log.ErrorContext(ctx, "saving snapshot failed", "err", err, "hint", hint.Of(err))
	}
}
