// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// settings are the parts of a configuration that tests choose.
type settings struct {
	command string         // agent when empty
	host    *nodetest.Host // where it runs; nil: on this machine's loopback
	listen  netip.AddrPort // a spare loopback address when it is zero
	admin   netip.AddrPort // a spare loopback address when it is zero
	env     []string       // added to the environment
	ownCPU  bool           // it runs as proctest.Alone says
	rest    string         // the sections but listen, admin and log
}

func (s *settings) yaml() string {
	return fmt.Sprintf("listen: {addresses: [%q], port: %d}\nadmin: {address: %q}\nlog: {format: text}\nlimits: {waiting: 65536}\n%s",
		s.listen.Addr(), s.listen.Port(), s.admin, s.rest)
}

// forwardTo is a configuration with one route.
func forwardTo(to ...string) string {
	return fmt.Sprintf("forward: [{zone: ., to: [%s]}]\n", `"`+strings.Join(to, `", "`)+`"`)
}

// agent is a running node-cache.
type agent struct {
	*proctest.Process
	settings settings
	config   string // path of its configuration file
	web      http.Client
	killed   bool // by the test
}

// start runs node-cache and waits until it is ready. When the test ends, it must still run and then end cleanly.
func start(t *testing.T, s settings) *agent {
	t.Helper()
	if s.command == "" {
		s.command = "agent"
	}
	if !s.listen.IsValid() {
		s.listen = proctest.FreeAddr(t)
	}
	if !s.admin.IsValid() {
		s.admin = proctest.FreeAddr(t)
	}
	a := &agent{settings: s, config: filepath.Join(t.TempDir(), "config.yaml")}
	a.web = http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: s.dial}}
	proctest.WriteFile(t, a.config, s.yaml())
	line := []string{nodeCache, s.command, "--config", a.config}
	if s.ownCPU {
		line = proctest.ReservedCPUCommand(line[0], line[1:]...)
	}
	cmd := command(s.host, line[0], line[1:]...)
	cmd.Env = append(cmd.Environ(), s.env...)
	a.Process = proctest.Start(t, "node-cache "+s.command, cmd)
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

// dial connects from where the agent runs.
func (s *settings) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if s.host != nil {
		return s.host.Dial(ctx, network, addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, network, addr)
}

// stop asks the agent to end and expects a clean exit. Stopping twice is harmless.
func (a *agent) stop(t *testing.T) {
	t.Helper()
	if !a.Ended() {
		a.Signal(syscall.SIGTERM)
	}
	if err := a.Wait(t, 15*time.Second); err != nil && !a.killed {
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
	reply, err := a.web.Get("http://" + a.settings.admin.String() + path)
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
	Problems  []problem
	Upstreams []server
	Queries   struct {
		Total   int
		ByRcode map[string]int
	}
	Cluster struct {
		Central struct{ Endpoints []server }
	}
}

type problem struct{ Where, What, Hint string }

// server is an upstream, or an endpoint of the central resolver.
type server struct {
	Address     string
	State       string
	Requests    int
	Failures    map[string]int
	Open        struct{ Resumed int }
	Limitations []string
	LastError   string
}

func (a *agent) status(t *testing.T) (s status) {
	t.Helper()
	body, err := a.get("/status")
	if err != nil {
		t.Fatalf("getting /status of %s: %v", a.Name, err)
	}
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		t.Fatalf("decoding /status: %v\n%s", err, body)
	}
	return s
}

// upstream is the upstream of the first route whose address holds a text.
func (a *agent) upstream(t *testing.T, address string) server {
	t.Helper()
	s := a.status(t)
	for _, u := range append(s.Upstreams, s.Cluster.Central.Endpoints...) {
		if strings.Contains(u.Address, address) {
			return u
		}
	}
	t.Fatalf("/status has no upstream %s: %+v", address, s)
	return server{}
}

// upstreamQueries is how many queries have left the agent.
func (a *agent) upstreamQueries(t *testing.T) int {
	t.Helper()
	sum := 0
	for _, u := range a.status(t).Upstreams {
		sum += u.Requests
	}
	return sum
}

// rss is the agent's resident memory in MiB: now, and the most it ever was.
func (a *agent) rss(t *testing.T) (now, peak int) {
	t.Helper()
	used, err := proctest.UsageOf(a.PID())
	if err != nil {
		t.Fatal(err)
	}
	return int(used.RSS >> 20), int(used.Peak >> 20)
}
