// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// How much older than a new program another version of it is when it is removed from the cache folder.
const programAge = 30 * 24 * time.Hour

// How often a lock that somebody else holds is asked for.
const lockPoll = 200 * time.Millisecond

// Programs are the paths of the built programs.
type Programs struct {
	Kube    string // kube-apiserver, kube-controller-manager and kube-proxy: the first argument chooses
	Etcd    string
	CoreDNS string
}

// Build makes the programs from the modules test/kube, test/etcd and test/coredns of the repository that holds the
// working directory. It keeps them in the user's cache folder under a name made of everything they depend on, so
// that a second call finds them there. With an empty Go build cache it takes several minutes and fetches modules.
// Processes that build at the same time wait for each other.
func Build(ctx context.Context) (Programs, error) {
	root, err := repositoryRoot()
	if err != nil {
		return Programs{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return Programs{}, fmt.Errorf("finding a folder for programs: %w", err)
	}
	b := builder{root: root, dir: filepath.Join(cache, "node-cache", "programs")}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return Programs{}, fmt.Errorf("making a folder for programs: %w", err)
	}
	if b.toolchain, err = output(ctx, root, "go", "env", "GOVERSION", "GOOS", "GOARCH"); err != nil {
		return Programs{}, fmt.Errorf("asking the go command for its version: %w", err)
	}
	var p Programs
	for _, program := range []struct {
		name string
		path *string
	}{{"etcd", &p.Etcd}, {"coredns", &p.CoreDNS}, {"kube", &p.Kube}} {
		if *program.path, err = b.program(ctx, program.name); err != nil {
			return Programs{}, fmt.Errorf("building %s: %w", program.name, err)
		}
	}
	return p, nil
}

// A builder makes programs out of the modules in one repository.
type builder struct {
	root      string // the repository
	dir       string // where the programs go
	toolchain string // what else decides how a program turns out
}

// program returns the path of the program made from the module test/name, built if it is not there.
func (b builder) program(ctx context.Context, name string) (string, error) {
	module := filepath.Join(b.root, "test", name)
	sum, err := b.fingerprint(module)
	if err != nil {
		return "", err
	}
	path := filepath.Join(b.dir, name+"-"+sum)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	unlock, err := lock(ctx, filepath.Join(b.dir, name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil // built while we waited for the lock
	}
	if err := compile(ctx, module, path); err != nil {
		return "", err
	}
	return path, b.prune(name, path)
}

// fingerprint sums up the module's files and the toolchain: go.sum stands for every dependency.
func (b builder) fingerprint(module string) (string, error) {
	files, err := filepath.Glob(filepath.Join(module, "*.go"))
	if err != nil {
		return "", fmt.Errorf("listing a module: %w", err)
	}
	if len(files) == 0 {
		return "", fmt.Errorf("listing a module: no Go files in %s", module)
	}
	all := fmt.Appendf(nil, "%s\n%q\n", b.toolchain, buildArgs(""))
	for _, file := range append(files, filepath.Join(module, "go.mod"), filepath.Join(module, "go.sum")) {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("reading a module: %w", err)
		}
		all = fmt.Appendf(all, "%s %d\n%s", filepath.Base(file), len(text), text)
	}
	return fmt.Sprintf("%x", sha256.Sum256(all))[:16], nil
}

// prune removes versions of a program that nobody has built for long.
func (b builder) prune(name, latest string) error {
	made, err := os.Stat(latest)
	if err != nil {
		return fmt.Errorf("removing old programs: %w", err)
	}
	others, err := filepath.Glob(filepath.Join(b.dir, name+"-*"))
	if err != nil {
		return fmt.Errorf("removing old programs: %w", err)
	}
	for _, other := range others {
		info, err := os.Stat(other)
		if err != nil || made.ModTime().Sub(info.ModTime()) < programAge {
			continue
		}
		if err := os.Remove(other); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing old programs: %w", err)
		}
	}
	return nil
}

// compile builds the module and moves the result to path in one step.
func compile(ctx context.Context, module, path string) error {
	temporary := path + ".new"
	defer func() { _ = os.Remove(temporary) }() // there is none after success
	if _, err := output(ctx, module, "go", buildArgs(temporary)...); err != nil {
		return fmt.Errorf("running the go command: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("putting a program in place: %w", err)
	}
	return nil
}

func buildArgs(out string) []string {
	return []string{"build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", out, "."}
}

// output runs a command in dir and returns its standard output. The error holds the end of what it wrote to
// standard error.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s in %s: %w\n%s", name, strings.Join(args, " "), dir, err, lastLines(stderr.String(), 20))
	}
	return string(out), nil
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

// lastLines is the end of a text.
func lastLines(text string, n int) string {
	lines := slices.Collect(strings.Lines(strings.TrimSpace(text)))
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
