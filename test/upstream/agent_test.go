// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// settings are the parts of a configuration that tests choose.
type settings struct {
	command string         // agent when empty
	host    *nodetest.Host // where it runs; nil: on this machine's loopback
	listen  netip.AddrPort // a spare loopback address when it is zero
	admin   netip.AddrPort // a spare loopback address when it is zero
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
	*proctest.Agent
	settings settings
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
	line := []string{nodeCache, s.command, "--config", proctest.WriteFile(t, filepath.Join(t.TempDir(), "config.yaml"), s.yaml())}
	if s.ownCPU {
		line = proctest.ReservedCPUCommand(line[0], line[1:]...)
	}
	return &agent{proctest.StartAgent(t, command(s.host, line[0], line[1:]...), s.admin, "/readyz", s.dial), s}
}

// dial connects from where the agent runs.
func (s *settings) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if s.host != nil {
		return s.host.Dial(ctx, network, addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, network, addr)
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
	a.Status(t, &s)
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
