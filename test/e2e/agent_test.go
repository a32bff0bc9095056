// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

// settings are the parts of a configuration that tests choose.
type settings struct {
	address string   // listen address, 127.0.0.1 when empty
	port    int      // listen port, a free one when 0
	admin   int      // admin port, a free one when 0
	to      []string // upstreams of "."
	more    string   // further sections, as YAML
}

// yaml renders the configuration file.
func (s settings) yaml() string {
	return fmt.Sprintf("listen: {addresses: [%s], port: %d}\nforward: [{zone: \".\", to: [%s]}]\nadmin: {address: 127.0.0.1:%d}\n%s\n",
		s.address, s.port, `"`+strings.Join(s.to, `", "`)+`"`, s.admin, s.more)
}

// agent is a running node-cache.
type agent struct {
	*proctest.Process
	settings settings
	config   string // path of its configuration file
	addr     string // where it answers queries
	admin    string // base URL of its admin server
}

// startAgent runs node-cache with the settings and waits until it is ready. When the test ends, it must still run
// and then end cleanly.
func startAgent(t *testing.T, s settings) *agent {
	t.Helper()
	if s.address == "" {
		s.address = "127.0.0.1"
	}
	if s.port == 0 {
		s.port = freePort(t)
	}
	if s.admin == 0 {
		s.admin = freePort(t)
	}
	return launchFile(t, s, writeFile(t, filepath.Join(t.TempDir(), "config.yaml"), s.yaml()))
}

// launchFile runs node-cache with a configuration file that holds the settings.
func launchFile(t *testing.T, s settings, config string) *agent {
	t.Helper()
	return launch(t, s, exec.Command(nodeCache, "agent", "--config", config), config)
}

// launch starts the agent's command line and waits until the agent is ready.
func launch(t *testing.T, s settings, cmd *exec.Cmd, config string) *agent {
	t.Helper()
	a := &agent{
		settings: s,
		config:   config,
		addr:     fmt.Sprintf("%s:%d", s.address, s.port),
		admin:    fmt.Sprintf("http://127.0.0.1:%d", s.admin),
	}
	a.Process = proctest.Start(t, "node-cache", cmd)
	t.Cleanup(func() { a.stop(t) })
	proctest.Eventually(t, 10*time.Second, "node-cache is ready", func() bool {
		if a.Ended() {
			t.Fatalf("node-cache ended: %v", a.Err())
		}
		status, _, err := a.get("/readyz")
		return err == nil && status == http.StatusOK
	})
	return a
}

// stop asks the agent to end and expects a clean exit. Stopping twice is harmless.
func (a *agent) stop(t *testing.T) {
	t.Helper()
	if !a.Ended() {
		a.Signal(syscall.SIGTERM)
	}
	if err := a.Wait(t, 15*time.Second); err != nil {
		t.Errorf("node-cache ended with %v, want a clean exit", err)
	}
	for _, bad := range []string{"DATA RACE", "panic: ", "panicked", "goroutine 1 ["} {
		if strings.Contains(a.Stderr.String(), bad) {
			t.Errorf("node-cache wrote %q to stderr", bad)
		}
	}
}

// get fetches a page of the admin server.
func (a *agent) get(path string) (status int, body string, err error) {
	client := http.Client{Timeout: 5 * time.Second}
	reply, err := client.Get(a.admin + path)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	return reply.StatusCode, string(text), err
}

// awaitPage fetches a page of the admin server until it is as wanted. What it shows may be a moment behind what the
// agent does.
func (a *agent) awaitPage(t *testing.T, path, what string, wanted func(page string) bool) {
	t.Helper()
	const limit = 10 * time.Second
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		code, page, err := a.get(path)
		if err == nil && code == http.StatusOK && wanted(page) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %s: %d %v\n%s", limit, path, what, code, err, page)
		}
	}
}

// awaitLog waits until the log holds each of the texts. It comes through a pipe, behind what other pages tell.
func (a *agent) awaitLog(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		proctest.Eventually(t, 10*time.Second, fmt.Sprintf("the log says %q", text), func() bool {
			return strings.Contains(a.Stderr.String(), text)
		})
	}
}

// statusNumber is one number of the /status page, by part and key.
func (a *agent) statusNumber(t *testing.T, part, key string) int {
	t.Helper()
	code, body, err := a.get("/status")
	if err != nil || code != http.StatusOK {
		t.Fatalf("GET /status: %d %v", code, err)
	}
	var page map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &page); err != nil {
		t.Fatalf("decoding /status: %v\n%s", err, body)
	}
	var values map[string]any
	if err := json.Unmarshal(page[part], &values); err != nil {
		t.Fatalf("decoding %s of /status: %v\n%s", part, err, body)
	}
	number, ok := values[key].(float64)
	if !ok {
		t.Fatalf("/status has no number %s.%s:\n%s", part, key, body)
	}
	return int(number)
}

// rss is the agent's resident memory in bytes.
func (a *agent) rss(t *testing.T) int64 {
	t.Helper()
	used, err := proctest.UsageOf(a.PID())
	if err != nil {
		t.Fatal(err)
	}
	return used.RSS
}
