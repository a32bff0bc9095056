// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"testing"

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
	*proctest.Agent
	listen, admin netip.AddrPort
	config        string // path of its configuration file
	socket        string // admin.socket
}

// start runs node-cache and waits until it is ready. When the test ends, it must still run and then end cleanly.
func start(t *testing.T, s settings) *agent {
	t.Helper()
	a := &agent{listen: proctest.FreeAddr(t), admin: proctest.FreeAddr(t), socket: proctest.SocketPath(t), config: filepath.Join(t.TempDir(), "config.yaml")}
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
	a.Agent = proctest.StartAgent(t, cmd, a.admin, "/readyz", nil)
	return a
}

// configure writes the configuration file, which a running agent follows.
func (a *agent) configure(t *testing.T, rest string) {
	t.Helper()
	proctest.WriteFile(t, a.config, fmt.Sprintf("listen: {addresses: [%q], port: %d}\nadmin: {address: %q, socket: %q}\nlog: {format: text}\n%s",
		a.listen.Addr(), a.listen.Port(), a.admin, a.socket, rest))
}

// status is what tests read of /status.
type status struct {
	Problems []problem
	Queries  struct{ Inflight, Waiting int }
}

type problem struct{ Where, What, Hint string }

func (a *agent) status(t *testing.T) (s status) {
	t.Helper()
	a.Status(t, &s)
	return s
}
