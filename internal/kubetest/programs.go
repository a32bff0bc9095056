// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Programs are the paths of the built programs.
type Programs struct {
	Kube    string // the programs of Kubernetes, kubectl too: the first argument chooses
	Etcd    string
	CoreDNS string
}

// Build makes the programs of a control plane: [Program] of each.
func Build(ctx context.Context) (Programs, error) {
	var p Programs
	for _, program := range []struct {
		name string
		path *string
	}{{"etcd", &p.Etcd}, {"coredns", &p.CoreDNS}, {"kube", &p.Kube}} {
		var err error
		if *program.path, err = Program(ctx, program.name); err != nil {
			return Programs{}, err
		}
	}
	return p, nil
}

// Program makes one program from the module of that name in folder test of the repository that holds the working
// directory, and returns its path: kube, etcd, coredns, containerd, helm, or with the name of a package in the module
// containerd/shim. It keeps it in the user's cache folder under a name made of everything it depends on, so that a
// second call finds it there. With an empty Go build cache that takes minutes and fetches modules. Processes that build
// at the same time wait for each other.
func Program(ctx context.Context, name string) (string, error) {
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	dir, err := cacheFolder("programs")
	if err != nil {
		return "", err
	}
	toolchain, err := goCommand(ctx, root, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", fmt.Errorf("asking the go command for its version: %w", err)
	}
	module, _, _ := strings.Cut(name, "/")
	folder, module := filepath.Join(root, "test", name), filepath.Join(root, "test", module)
	sum, err := fingerprint(toolchain, module, folder)
	if err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	return once(ctx, dir, strings.ReplaceAll(name, "/", "_"), sum, func(path string) error {
		if err := build(ctx, module, folder, path); err != nil {
			return fmt.Errorf("building %s: %w", name, err)
		}
		return nil
	})
}

// build builds the program of a module's folder.
func build(ctx context.Context, module, folder, path string) error {
	args, err := buildArgs(module, path)
	if err != nil {
		return err
	}
	temporary, err := os.MkdirTemp("", "kubetest-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	flags, err := patch(ctx, module, temporary)
	if err != nil {
		return err
	}
	_, err = goCommand(ctx, folder, slices.Insert(args, 1, flags...)...)
	return err
}

// fingerprint sums up the files of a module's package and the toolchain: go.sum stands for every dependency.
func fingerprint(toolchain, module, folder string) (string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return "", fmt.Errorf("listing a module: %w", err)
	}
	if len(files) == 0 {
		return "", fmt.Errorf("listing a module: no Go files in %s", folder)
	}
	args, err := buildArgs(module, "")
	if err != nil {
		return "", err
	}
	patched, err := patches(module)
	if err != nil {
		return "", err
	}
	all := fmt.Appendf(nil, "%s\n%q\n", toolchain, args)
	for _, file := range slices.Concat(files, patched, []string{filepath.Join(module, "go.mod"), filepath.Join(module, "go.sum")}) {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("reading a module: %w", err)
		}
		all = fmt.Appendf(all, "%s %d\n%s", filepath.Base(file), len(text), text)
	}
	return fmt.Sprintf("%x", sha256.Sum256(all))[:16], nil
}

// buildArgs has the tags that leave out what containerd needs kernel modules or a C library for, and tells the programs
// of Kubernetes their version, as its own builds do: clients and charts ask for it.
func buildArgs(module, out string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return nil, fmt.Errorf("reading a module: %w", err)
	}
	flags := "-s -w"
	if found := regexp.MustCompile(`\sk8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)`).FindSubmatch(text); found != nil {
		const version = " -X k8s.io/component-base/version.git"
		flags += fmt.Sprintf("%[1]sVersion=%[2]s%[1]sMajor=%[3]s%[1]sMinor=%[4]s", version, found[1], found[2], found[3])
	}
	return []string{
		"build", "-buildvcs=false", "-trimpath", "-tags", "no_btrfs,no_zfs,no_devmapper", "-ldflags", flags, "-o", out, ".",
	}, nil
}

// goCommand runs the go command in dir and returns its standard output. The error holds the end of what it wrote to
// standard error.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), dir, err, lastLines(stderr.String(), 20))
	}
	return string(out), nil
}

// lastLines is the end of a text.
func lastLines(text string, n int) string {
	lines := slices.Collect(strings.Lines(strings.TrimSpace(text)))
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// How much older than a new program another version of it is when it is removed.
const entryAge = 30 * 24 * time.Hour

// How often a lock that another process holds is tried.
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

// repositoryRoot finds the folder of the main module in the working directory or above it: a test runs in its
// package's folder, and the folders of the nested modules lie below the root as well.
func repositoryRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module github.com/nodecache/node-cache\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("finding the repository: no go.mod of node-cache in %s or above it", start)
		}
	}
}
