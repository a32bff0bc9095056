// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"bytes"
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
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/filewatch"
)

const (
	lastGoodName    = "last-good.yaml"
	temporaryPrefix = ".last-good-" // prefix of the names of files that are being written
	temporaryMaxAge = time.Minute   // an older file was left behind by a killed process

	// The first and last lines show whether a file is complete and unchanged. Without this check, a truncated file would load
	// with the defaults of the missing keys, and a file with a disk error as another configuration.
	headerPrefix  = "# The configuration that node-cache put to work"
	trailerPrefix = "# This is the end of it, its checksum is "

	// finalSaveTimeout bounds the last save: a hanging disk must not keep a pod from ending.
	finalSaveTimeout = 2 * time.Second
)

// A lastGoodStore saves the last good configuration.
type lastGoodStore struct {
	*base

	kick     chan struct{}
	saves    atomic.Uint64
	failures atomic.Uint64

	mu      sync.Mutex // guards the following fields
	pending *InUse     // configuration to save next; nil: none
	saved   time.Time  // when the configuration that was saved last was applied; zero: none is saved yet
	why     string     // error of the last save; empty: it succeeded
}

func (l *lastGoodStore) path() string { return filepath.Join(l.cfg.LastGood, lastGoodName) }

// exists reports whether there is a saved configuration.
func (l *lastGoodStore) exists() bool {
	_, err := os.Stat(l.path())
	return err == nil
}

// read returns the saved configuration, and when it was saved.
func (l *lastGoodStore) read() (cfg config.Config, at time.Time, err error) {
	data, err := filewatch.ReadTrusted(l.path(), maxFile)
	if err != nil {
		return cfg, at, fmt.Errorf("reading the last good configuration: %w", err)
	}
	text := string(data)
	if info, err := os.Stat(l.path()); err == nil {
		at = info.ModTime()
	}
	if err := checkWhole(text); err != nil {
		return cfg, at, fmt.Errorf("reading the last good configuration: %s %w", l.path(), err)
	}
	// The file contains every key, so the role does not change its values. But a key that the role forbids is an error.
	cfg, err = config.ParseAs(l.path(), l.cfg.LastGood, data, l.cfg.Role)
	return cfg, at, err
}

// holds reports whether cfg, but for standby, is the saved configuration.
func (l *lastGoodStore) holds(cfg config.Config) bool {
	saved, _, err := l.read()
	if err != nil {
		return false
	}
	saved.Standby = cfg.Standby
	one, err := config.Marshal(saved)
	if err != nil {
		return false
	}
	other, err := config.Marshal(cfg)
	return err == nil && bytes.Equal(one, other)
}

// Errors of the file as a whole.
var (
	errEmpty     = errors.New("is empty")
	errTruncated = errors.New("is truncated")
	errDamaged   = errors.New("has a wrong checksum")
)

// checkWhole checks the first and last lines. It accepts a file that has neither of them: a person wrote it.
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

// withTrailer returns the text with its last line.
func withTrailer(text string) string {
	return fmt.Sprintf("%s%s%08x.\n", text, trailerPrefix, crc32.ChecksumIEEE([]byte(text)))
}

// drop removes the configuration that waits to be saved.
func (l *lastGoodStore) drop() {
	l.mu.Lock()
	l.pending = nil
	l.mu.Unlock()
}

// save queues a configuration to be saved once the agent serves.
func (l *lastGoodStore) save(now InUse) {
	now.at = l.cfg.Now()
	l.mu.Lock()
	l.pending = &now
	l.mu.Unlock()
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// run saves configurations until ctx ends, including the last one. Failed saves are retried.
func (l *lastGoodStore) run(ctx context.Context) {
	done := make(chan struct{})
	go func() { // joined below, unless the file system hangs
		defer close(done)
		_ = l.runWithRestarts(ctx, "keeping the last good configuration", l.saveLoop, func(error) {})
	}()
	<-ctx.Done()
	late := time.NewTimer(finalSaveTimeout)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		l.cfg.Log.ErrorContext(ctx, "saving last good configuration timed out", "err", "the file system does not answer", "folder", l.cfg.LastGood)
	}
}

// saveLoop begins once the agent serves. It saves each pending configuration until ctx ends, and then the last one.
func (l *lastGoodStore) saveLoop(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-l.cfg.Serving:
	}
	retry := stoppedTimer()
	defer retry.Stop()
	for ctx.Err() == nil {
		if !l.flush(ctx) {
			retry.Reset(retryInterval)
		}
		select {
		case <-ctx.Done():
		case <-l.kick:
		case <-retry.C:
		}
	}
	l.flush(ctx)
	return nil
}

// flush saves the pending configuration. It reports false if that failed; then a configuration is pending again.
func (l *lastGoodStore) flush(ctx context.Context) (done bool) {
	select {
	case <-l.kick: // this call saves the configuration that kick announced
	default:
	}
	l.mu.Lock()
	p := l.pending
	l.pending = nil
	l.mu.Unlock()
	if p == nil {
		return true
	}
	err := l.recovering(ctx, "keeping the last good configuration", func() error { return l.write(p) })
	before, why := l.noteResult(p, err)
	log := l.cfg.Log
	if err == nil {
		l.saves.Add(1)
		log.DebugContext(ctx, "last good configuration saved", "file", l.path(), "generation", p.Generation)
		return true
	}
	l.failures.Add(1)
	if before != why {
		log.ErrorContext(ctx, "saving last good configuration failed", "err", err, "hint", "check that the folder of --last-good is writable and has free space; the agent retries every minute, and the previous one stays")
	}
	return false
}

// noteResult records the result of saving p. It returns the error of the previous attempt and of this one.
func (l *lastGoodStore) noteResult(p *InUse, err error) (before, why string) {
	if err != nil {
		why = err.Error()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before, l.why = l.why, why
	switch {
	case err == nil:
		l.saved = p.at
	case l.pending == nil:
		l.pending = p
	}
	return before, why
}

// write writes the file atomically.
func (l *lastGoodStore) write(p *InUse) (err error) {
	text, err := config.Marshal(p.Config)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(l.cfg.LastGood, 0o700); err != nil {
		return fmt.Errorf("creating the folder of the last good configuration: %w", err)
	}
	l.removeTemporary(p.at)
	f, err := os.CreateTemp(l.cfg.LastGood, temporaryPrefix) // readable only by this user
	if err != nil {
		return l.writeError(err)
	}
	_, err = f.WriteString(withTrailer(l.header(p) + string(text)))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), l.path())
	}
	if err != nil {
		_ = os.Remove(f.Name()) // if this fails, a later save removes the file
		return l.writeError(err)
	}
	return syncFolder(l.cfg.LastGood)
}

// writeError returns err without the random file name, so that equal errors are logged once.
func (l *lastGoodStore) writeError(err error) error {
	if code := syscall.Errno(0); errors.As(err, &code) {
		err = code
	}
	return fmt.Errorf("writing the last good configuration %s: %w", l.path(), err)
}

// header explains the file to its reader.
func (l *lastGoodStore) header(p *InUse) string {
	return fmt.Sprintf(headerPrefix+" at %s as generation %d,\n# from %s, with every key.\n"+
		"# It is used at a start when there is none, or only a bad one. Changes made here are lost.\n",
		p.at.UTC().Format(time.RFC3339), p.Generation, strings.ReplaceAll(l.Name(), "\n", " "))
}

// removeTemporary removes the files of killed processes.
func (l *lastGoodStore) removeTemporary(now time.Time) {
	entries, err := os.ReadDir(l.cfg.LastGood)
	if err != nil {
		return // the save reports the error
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), temporaryPrefix) && info.Mode().IsRegular() && now.Sub(info.ModTime()) > temporaryMaxAge {
			_ = os.Remove(filepath.Join(l.cfg.LastGood, e.Name()))
		}
	}
}

// syncFolder makes the rename of the file in folder durable.
func syncFolder(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return fmt.Errorf("syncing the folder of the last good configuration: %w", err)
	}
	err = f.Sync()
	if errors.Is(err, fs.ErrInvalid) {
		err = nil // some file systems cannot sync a folder
	}
	return errors.Join(err, f.Close())
}

// status returns when the configuration that was saved last was applied, and the error of the last save.
func (l *lastGoodStore) status() (at time.Time, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.saved, l.why
}
