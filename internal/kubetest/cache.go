// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// How much older than a new entry of the cache folder another version of it is when it is removed.
const entryAge = 30 * 24 * time.Hour

// How often a lock that somebody else holds is asked for.
const lockPoll = 200 * time.Millisecond

// cacheFolder returns a folder of ours in the user's cache folder.
func cacheFolder(name string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache folder: %w", err)
	}
	dir := filepath.Join(cache, "node-cache", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making a cache folder: %w", err)
	}
	return dir, nil
}

// once returns the path of the file or folder name-version in dir. If it is not there, create puts it at the path it
// is given, from where it moves in one step; processes that want the same wait for each other.
func once(ctx context.Context, dir, name, version string, create func(path string) error) (string, error) {
	path := filepath.Join(dir, name+"-"+version)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	unlock, err := lock(ctx, filepath.Join(dir, name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil // made while we waited for the lock
	}
	temporary := path + ".new"
	if err := os.RemoveAll(temporary); err != nil { // from one that was interrupted
		return "", fmt.Errorf("cleaning up: %w", err)
	}
	if err := create(temporary); err != nil {
		return "", errors.Join(err, os.RemoveAll(temporary))
	}
	if err := os.Rename(temporary, path); err != nil {
		return "", fmt.Errorf("moving a result into place: %w", err)
	}
	return path, prune(dir, name, path)
}

// prune removes versions that are much older than the latest.
func prune(dir, name, latest string) error {
	made, err := os.Stat(latest)
	if err != nil {
		return fmt.Errorf("removing old versions: %w", err)
	}
	others, err := filepath.Glob(filepath.Join(dir, name+"-*"))
	if err != nil {
		return fmt.Errorf("removing old versions: %w", err)
	}
	for _, other := range others {
		info, err := os.Stat(other)
		if err != nil || made.ModTime().Sub(info.ModTime()) < entryAge {
			continue
		}
		if err := os.RemoveAll(other); err != nil {
			return fmt.Errorf("removing old versions: %w", err)
		}
	}
	return nil
}

// lock takes an exclusive lock on a file, which it creates. The kernel drops it if the process dies.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening a lock: %w", err)
	}
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing unlocks
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("waiting for %s: %w", path, ctx.Err()), f.Close())
		case <-ticker.C:
		}
	}
}
