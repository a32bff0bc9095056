// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
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
	rest   string   // the sections but listen, admin and log
	env    []string // added to the environment
	memory *cgroup  // that the agent is in from its first moment; nil: that of the test
	ownCPU bool     // the agent has one CPU, and no other, and goes before others there as far as this user may say so
}

// agent is a running node-cache on loopback.
type agent struct {
	*proctest.Process
	listen, admin netip.AddrPort
	config        string // path of its configuration file
	web           http.Client
}

// start runs node-cache and waits until it is ready. When the test ends, it must still run and then end cleanly.
func start(t *testing.T, s settings) *agent {
	t.Helper()
	a := &agent{listen: proctest.FreeAddr(t), admin: proctest.FreeAddr(t), config: filepath.Join(t.TempDir(), "config.yaml")}
	a.web = http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	a.configure(t, s.rest)
	line := []string{nodeCache, "agent", "--config", a.config}
	if s.ownCPU {
		line = proctest.ReservedCPUCommand(line[0], line[1:]...)
	}
	cmd := exec.Command(line[0], line[1:]...)
	if s.memory != nil {
		cmd = s.memory.command(t, nodeCache, "agent", "--config", a.config)
	}
	cmd.Env = append(cmd.Environ(), s.env...)
	a.Process = proctest.Start(t, "node-cache agent", cmd)
	t.Cleanup(func() { a.stop(t) })
	proctest.Eventually(t, 20*time.Second, "node-cache is ready", func() bool {
		if a.Ended() {
			t.Fatalf("node-cache ended: %v", a.Err())
		}
		_, err := a.get("/readyz")
		return err == nil
	})
	return a
}

// configure writes the configuration file, which a running agent follows.
func (a *agent) configure(t *testing.T, rest string) {
	t.Helper()
	proctest.WriteFile(t, a.config, fmt.Sprintf("listen: {addresses: [%q], port: %d}\nadmin: {address: %q}\nlog: {format: text}\n%s",
		a.listen.Addr(), a.listen.Port(), a.admin, rest))
}

// stop asks the agent to end and expects a clean exit.
func (a *agent) stop(t *testing.T) {
	t.Helper()
	if !a.Ended() {
		a.Signal(syscall.SIGTERM)
	}
	if err := a.Wait(t, 15*time.Second); err != nil {
		t.Errorf("%s ended with %v, want a clean exit", a.Name, err)
	}
	for _, bad := range []string{"DATA RACE", "panic", "goroutine 1 ["} {
		if strings.Contains(a.Stderr.String(), bad) {
			t.Errorf("%s wrote %q", a.Name, bad)
		}
	}
}

// get fetches a page of the admin server. Any status but 200 is an error.
func (a *agent) get(path string) (body string, err error) {
	reply, err := a.web.Get("http://" + a.admin.String() + path)
	if err != nil {
		return "", err
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", reply.Status, text)
	}
	return string(text), err
}

// status is what tests read of /status.
type status struct {
	Problems []problem
	Queries  struct{ Inflight, Waiting int }
}

type problem struct{ Where, What, Hint string }

func (a *agent) status(t *testing.T) (s status) {
	t.Helper()
	body, err := a.get("/status")
	if err == nil {
		err = json.Unmarshal([]byte(body), &s)
	}
	if err != nil {
		t.Fatalf("reading /status of %s: %v\n%s", a.Name, err, body)
	}
	return s
}
