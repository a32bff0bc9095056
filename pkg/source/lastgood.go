// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/filewatch"
)

const (
	lastGoodName    = "last-good.yaml"
	temporaryPrefix = ".last-good-" // begins the names of files that are being written
	temporaryMaxAge = time.Minute   // the age at which such a file is one that a killed writer has left behind

	// The first and the last line say whether a file is whole, and as it was written. One that lost its end could be read all
	// the same, as one with the defaults of what is missing; one that a disk has damaged, as another configuration.
	headerPrefix  = "# The configuration that node-cache put to work"
	trailerPrefix = "# This is the end of it, its checksum is "

	// lastSave is how long the end waits for the last one: a disk that hangs must not keep a pod from ending.
	finalSaveTimeout = 2 * time.Second
)

// A keeper keeps the last good configuration.
type lastGoodStore struct {
	source   *Source
	folder   string
	kick     chan struct{}
	saves    atomic.Uint64
	failures atomic.Uint64

	mu      sync.Mutex // guards what follows
	pending *lastGoodEntry
	saved   time.Time
	why     string
}

// A keepsake is a configuration to be kept.
type lastGoodEntry struct {
	config     config.Config
	generation uint64
	at         time.Time
}

func newLastGoodStore(s *Source) *lastGoodStore {
	return &lastGoodStore{source: s, folder: s.cfg.LastGood, kick: make(chan struct{}, 1)}
}

func (k *lastGoodStore) path() string { return filepath.Join(k.folder, lastGoodName) }

// exists says whether there is something to begin with.
func (k *lastGoodStore) exists() bool {
	_, err := os.Stat(k.path())
	return err == nil
}

// read gives what was kept, and when.
func (k *lastGoodStore) read() (cfg config.Config, at time.Time, err error) {
	data, err := filewatch.ReadTrusted(k.path(), maxFile)
	if err != nil {
		return cfg, at, fmt.Errorf("reading the last good configuration: %w", err)
	}
	text := string(data)
	if info, err := os.Stat(k.path()); err == nil {
		at = info.ModTime()
	}
	if err := checkWhole(text); err != nil {
		return cfg, at, fmt.Errorf("reading the last good configuration: %s %w", k.path(), err)
	}
	// Every key is in it, so the role makes no difference to its values, but what a role forbids has to be found.
	cfg, err = config.ParseAs(k.path(), k.folder, data, k.source.cfg.Role)
	return cfg, at, err
}

// What can be wrong with the file as a whole.
var (
	errEmpty     = errors.New("is empty")
	errTruncated = errors.New("has lost its end")
	errDamaged   = errors.New("is not as it was written")
)

// checkWhole says what is wrong with a file as a whole. One with neither the first line nor the last was put there by a
// person.
func checkWhole(text string) error {
	if strings.TrimSpace(text) == "" {
		return errEmpty
	}
	end := strings.LastIndex(text, "\n"+trailerPrefix) + 1
	switch {
	case end == 0 && !strings.HasPrefix(text, headerPrefix):
		return nil
	case end == 0 || !strings.HasSuffix(text, "\n"):
		return errTruncated
	case text != withTrailer(text[:end]):
		return errDamaged
	}
	return nil
}

// withEnd is a text with its last line.
func withTrailer(text string) string {
	return fmt.Sprintf("%s%s%08x.\n", text, trailerPrefix, crc32.ChecksumIEEE([]byte(text)))
}

// keep has a configuration kept, soon.
func (k *lastGoodStore) save(cfg config.Config, generation uint64) {
	k.mu.Lock()
	k.pending = &lastGoodEntry{config: cfg, generation: generation, at: k.source.cfg.Now()}
	k.mu.Unlock()
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// run writes what is to be kept until ctx ends, and then what is left to do. What could not be written is tried again.
func (k *lastGoodStore) run(ctx context.Context) {
	done := make(chan struct{})
	go func() { // joined below, unless the file system hangs
		defer close(done)
		_ = k.source.runWithRestarts(ctx, "keeping the last good configuration", k.saveLoop, func(error) {})
	}()
	<-ctx.Done()
	late := time.NewTimer(finalSaveTimeout)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		k.source.cfg.Log.ErrorContext(ctx, "the last good configuration is not kept", "err", "the file system does not answer", "folder", k.folder)
	}
}

// follow is run without an eye on the time.
func (k *lastGoodStore) saveLoop(ctx context.Context) error {
	retry := stoppedTimer()
	defer retry.Stop()
	for ctx.Err() == nil {
		if !k.flush() {
			retry.Reset(retryInterval)
		}
		select {
		case <-ctx.Done():
		case <-k.kick:
		case <-retry.C:
		}
	}
	k.flush()
	return nil
}

// flush writes what is to be kept, if something is. It is false if that is still to be done.
func (k *lastGoodStore) flush() (done bool) {
	select {
	case <-k.kick: // whatever it is for is taken now
	default:
	}
	k.mu.Lock()
	p := k.pending
	k.pending = nil
	k.mu.Unlock()
	if p == nil {
		return true
	}
	err := k.source.recovering("keeping the last good configuration", func() error { return k.write(p) })
	before, why := k.noteResult(p, err)
	log := k.source.cfg.Log
	if err == nil {
		k.saves.Add(1)
		log.Debug("last good configuration kept", "file", k.path(), "generation", p.generation)
		return true
	}
	k.failures.Add(1)
	if before != why {
		log.Error("the last good configuration is not kept, the one before stays", "err", err, "hint", "see that the folder of --last-good can be written to and has room; it is tried again each minute")
	}
	return false
}

// ended notes how an attempt to write p ended. It gives why the one before failed, and why this one did.
func (k *lastGoodStore) noteResult(p *lastGoodEntry, err error) (before, why string) {
	if err != nil {
		why = err.Error()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	before, k.why = k.why, why
	switch {
	case err == nil:
		k.saved = p.at
	case k.pending == nil:
		k.pending = p
	}
	return before, why
}

// write writes the file, whole or not at all.
func (k *lastGoodStore) write(p *lastGoodEntry) (err error) {
	text, err := config.Marshal(p.config)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(k.folder, 0o700); err != nil {
		return fmt.Errorf("making the folder of the last good configuration: %w", err)
	}
	k.removeTemporary(p.at)
	f, err := os.CreateTemp(k.folder, temporaryPrefix) // for nobody else to read
	if err != nil {
		return k.writeError(err)
	}
	_, err = f.WriteString(withTrailer(k.header(p) + string(text)))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), k.path())
	}
	if err != nil {
		_ = os.Remove(f.Name()) // if it fails too, the next one sweeps
		return k.writeError(err)
	}
	return syncFolder(k.folder)
}

// unwritten is why there is no file, without the drawn name of the one that was to become it: else each attempt's were news.
func (k *lastGoodStore) writeError(err error) error {
	path, link := (*fs.PathError)(nil), (*os.LinkError)(nil)
	switch {
	case errors.As(err, &path):
		err = path.Err
	case errors.As(err, &link):
		err = link.Err
	}
	return fmt.Errorf("writing the last good configuration %s: %w", k.path(), err)
}

// head tells a person what the file is.
func (k *lastGoodStore) header(p *lastGoodEntry) string {
	return fmt.Sprintf(headerPrefix+" at %s as generation %d,\n# from %s, with every key.\n"+
		"# It is used at a start when there is none, or only a bad one. Changes made here are lost.\n",
		p.at.UTC().Format(time.RFC3339), p.generation, strings.ReplaceAll(k.source.Name(), "\n", " "))
}

// sweep removes what killed writers have left behind.
func (k *lastGoodStore) removeTemporary(now time.Time) {
	entries, err := os.ReadDir(k.folder)
	if err != nil {
		return // whatever is wrong, writing will tell
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), temporaryPrefix) && info.Mode().IsRegular() && now.Sub(info.ModTime()) > temporaryMaxAge {
			_ = os.Remove(filepath.Join(k.folder, e.Name()))
		}
	}
}

// syncFolder sees the new name on the disk.
func syncFolder(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return fmt.Errorf("syncing the folder of the last good configuration: %w", err)
	}
	err = f.Sync()
	if errors.Is(err, fs.ErrInvalid) {
		err = nil // not every file system can
	}
	return errors.Join(err, f.Close())
}

// last tells when it was kept last, and why the last attempt failed.
func (k *lastGoodStore) status() (at time.Time, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.saved, k.why
}
