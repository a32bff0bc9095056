// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestStamp has `make build` and an image record version and commit in a clone that belongs to another user, and build without them
// from a source archive.
func TestStamp(t *testing.T) {
	t.Parallel()
	clone, archive := t.TempDir(), t.TempDir()
	for _, root := range []string{clone, archive} {
		copySources(t, repository, root)
		mustCommand(t, root, "cp", filepath.Join(must(filepath.Abs(repository)), "Makefile"), filepath.Join(must(filepath.Abs(repository)), ".gitignore"), ".")
	}
	mustCommand(t, clone, "sh", "-c", "git init -q && git add . && git -c user.name=a -c user.email=a@example.com commit -qm a && git tag v1.2.3")
	commit := mustCommand(t, clone, "git", "rev-parse", "HEAD")
	if os.Getuid() == 0 { // as a container that builds the clone of its host
		mustCommand(t, clone, "chown", "-R", "65534:65534", ".")
	}
	for root, want := range map[string]string{clone: "v1.2.3 " + commit, archive: "(devel) "} {
		mustCommand(t, root, "make", "-s", "build")
		program := filepath.Join(root, "bin", "node-cache")
		if got := stampOf(t, program); got != want {
			t.Errorf("make build records %q, want %q", got, want)
		}
		_, commit, _ := strings.Cut(want, " ")
		if got := buildInfo(t, program); !strings.Contains(got, `commit="`+commit+`"`) {
			t.Errorf("make build: %s, want commit %q", got, commit)
		}
	}
	b, err := compile(t.Context(), &options{root: clone, version: "v1.2.3"}, "linux/amd64", "node-cache")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "node-cache")
	if err := os.WriteFile(program, b.data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := stampOf(t, program), "v1.2.3 "+commit; got != want {
		t.Errorf("the image's program records %q, want %q", got, want)
	}
	// A file that is not in the commit would be recorded as a change, so that another clone makes another release.
	if err := os.WriteFile(filepath.Join(clone, "surplus"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	release := exec.CommandContext(t.Context(), "make", "release", "VERSION=v1.2.3")
	release.Dir = clone
	if out, err := release.CombinedOutput(); err == nil || !strings.Contains(string(out), "release: files differ from the commit") {
		t.Errorf("make release with a file that is in no commit: %v\n%s", err, out)
	}
}

// stampOf returns what `go version -m` shows of a program: the version and the commit.
func stampOf(t *testing.T, program string) string {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	revision := ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			if s.Value != "false" {
				t.Errorf("%s: vcs.modified=%s", program, s.Value)
			}
		}
	}
	return info.Main.Version + " " + revision
}

// buildInfo starts an agent and returns the line of nodecache_build_info of its metrics.
func buildInfo(t *testing.T, program string) string {
	t.Helper()
	folder := t.TempDir()
	config, socket := filepath.Join(folder, "node-cache.yaml"), filepath.Join(folder, "admin.sock")
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().(*net.TCPAddr) // for queries at 127.0.0.1, for pages at 127.0.0.2
	_ = free.Close()
	text := fmt.Sprintf("listen: {addresses: [127.0.0.1], port: %d}\nadmin: {address: '127.0.0.2:%[1]d', socket: %s}\n", addr.Port, socket)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := exec.CommandContext(t.Context(), program, "agent", "--config", config)
	var log strings.Builder
	agent.Stderr = &log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Wait() }()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	for {
		answer, err := client.Get("http://localhost/metrics")
		if err != nil {
			select {
			case err := <-ended:
				t.Fatalf("the agent ended: %v: %s", err, &log)
			case <-time.After(10 * time.Millisecond):
				continue
			}
		}
		data, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		_, line, _ := strings.Cut(string(data), "\nnodecache_build_info{")
		line, _, _ = strings.Cut(line, "\n")
		return line
	}
}

// mustCommand runs a command in a folder and returns its output without the end of the line.
func mustCommand(t *testing.T, folder, name string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir = folder
	out, err := outputOf(command)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
