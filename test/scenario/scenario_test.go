// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/snapshot"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			assert.NoError(t, err)
			script, inRealTime := strings.CutPrefix(withoutRemarks(string(archive.Comment)), "realtime\n")
			dir := t.TempDir()
			if inRealTime {
				newScenarioRun(t, archive, dir, func() { time.Sleep(10 * time.Millisecond) }).play(script)
				return
			}
			synctest.Test(t, func(t *testing.T) { newScenarioRun(t, archive, dir, synctest.Wait).play(script) })
		})
	}
}

// A scenarioRun is a scenario being played.
type scenarioRun struct {
	t     *testing.T
	files map[string]string
	dir   string
	clock func() time.Time // dates snapshots
	wait  func()           // until everything that runs in the background waits for time to pass

	mu        sync.Mutex // guards network and closed
	network   upstreamtest.Network
	closed    map[netip.AddrPort]string // "tcp", or "all" for every port
	authority *upstreamtest.Authority   // nil: no configuration names it

	agent  *agent.Agent
	worker server.Worker // of the script's queries, one at a time
	log    *proctest.Output
	stop   context.CancelFunc
	ended  chan error

	lastQuery []string // arguments of the last query
	last      reply
	waiting   []chan reply
	settled   []reply

	queriesSeen     map[netip.AddrPort]map[string]int // by transport
	repliesBySource map[string]uint64                 // when last looked at
	shed            uint64                            // when last looked at
	logSeen         int                               // queries in the log when last looked at
}

func newScenarioRun(t *testing.T, archive *txtar.Archive, dir string, wait func()) *scenarioRun {
	t.Helper()
	s := &scenarioRun{
		t: t, files: map[string]string{}, dir: dir, clock: time.Now, wait: wait, network: upstreamtest.Network{}, closed: map[netip.AddrPort]string{},
		queriesSeen: map[netip.AddrPort]map[string]int{}, repliesBySource: map[string]uint64{},
	}
	for _, f := range archive.Files {
		s.files[f.Name] = strings.ReplaceAll(string(f.Data), "$DIR", dir)
		assert.NoError(t, s.write(f.Name, f.Name))
	}
	if strings.Contains(s.files["config"], "ca.pem") {
		s.authority = upstreamtest.NewAuthority(t, time.Now())
		s.authority.Trust(t, filepath.Join(dir, "ca.pem"))
	}
	return s
}

// play runs the commands. The agent starts after the first block of upstreams.
func (s *scenarioRun) play(script string) {
	cfg, err := s.config("config")
	assert.NoError(s.t, err)
	for n, line := range strings.Split(script, "\n") {
		words := splitWords(line)
		if len(words) == 0 {
			continue
		}
		if s.agent == nil && words[0] != "upstream" {
			s.start(cfg)
		}
		if err := s.command(words[0], words[1:]); err != nil {
			s.t.Errorf("command %d: %s: %v", n+1, line, err)
		}
	}
	s.end()
	if s.t.Failed() {
		s.t.Logf("log of the agent:\n%s", s.log.String())
	}
}

// start runs an agent without sockets of its own.
func (s *scenarioRun) start(cfg config.Config) {
	s.log, s.logSeen = new(proctest.Output), 0
	var err error
	s.agent, err = agent.New(agent.Options{
		Config: &cfg, Version: "scenario", Log: s.log, Dial: s.dial,
		Clocks: func() snapshot.ClockState { return snapshot.ClockState{Wall: s.clock()} },
	})
	assert.NoError(s.t, err)
	var ctx context.Context
	ctx, s.stop = context.WithCancel(s.t.Context())
	s.ended = make(chan error, 1)
	go func(a *agent.Agent, ended chan<- error) { ended <- a.Run(ctx) }(s.agent, s.ended)
	<-s.agent.Ready()
	for cfg.Cluster.Manifests != "" && s.agent.Status().State != "ready" { // the folder is read in real time
		time.Sleep(time.Millisecond)
	}
	s.worker = s.agent.NewWorker()
}

func (s *scenarioRun) end() {
	s.stop()
	if err := <-s.ended; err != nil {
		s.t.Errorf("agent ended: %v", err)
	}
}

// dial connects to the server that is at addr now.
func (s *scenarioRun) dial(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error) {
	s.mu.Lock()
	server, closed := s.network[addr], s.closed[addr]
	s.mu.Unlock()
	if server == nil || closed == "all" || closed == network {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	return upstreamtest.Network{addr: server}.Dial(ctx, network, addr)
}

func (s *scenarioRun) config(name string) (config.Config, error) {
	if _, ok := s.files[name]; !ok {
		return config.Config{}, fmt.Errorf("no file %s", name)
	}
	cfg, err := config.Parse([]byte(s.files[name]), config.Agent)
	cfg.Listen.Addresses = nil
	cfg.Admin = config.Admin{}
	return cfg, err
}

func (s *scenarioRun) command(name string, args []string) error {
	commands := map[string]func([]string) error{
		"upstream": s.upstream, "query": s.query, "ask": s.ask, "settle": s.settle, "packet": s.packet,
		"expect": s.expect, "await": s.await, "within": s.within, "replies": s.replies, "rotates": s.rotates,
		"asked": s.asked, "sent": s.sent, "server": s.server, "given": s.given, "shed": s.expectShed, "logged": s.logged,
		"elapse": elapse, "reload": s.reload, "refused": s.refused, "restart": s.restart,
	}
	if run, ok := commands[name]; ok {
		return run(args)
	}
	switch name {
	case "write":
		return s.write(args[0], args[1])
	case "remove":
		return os.Remove(filepath.Join(s.dir, args[0]))
	}
	return errors.New("no such command")
}

// write replaces a file of the folder at once, as programs that others follow do.
func (s *scenarioRun) write(file, name string) error {
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", []byte(s.files[file]), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func elapse(args []string) error {
	d, err := time.ParseDuration(args[0])
	time.Sleep(d)
	return err
}

func (s *scenarioRun) reload(args []string) error {
	cfg, err := s.config(args[0])
	_, err = s.agent.Reload(cfg, err)
	return err
}

func (s *scenarioRun) refused(args []string) error {
	cfg, err := s.config(args[0])
	if _, err := s.agent.Reload(cfg, err); err == nil {
		return errors.New("taken")
	}
	return nil
}

func (s *scenarioRun) restart([]string) error {
	s.end()
	s.start(s.agent.Config())
	clear(s.repliesBySource)
	s.shed = 0
	return nil
}

func withoutRemarks(script string) string {
	var b strings.Builder
	for line := range strings.Lines(script) {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) != "" {
			b.WriteString(strings.TrimSpace(line) + "\n")
		}
	}
	return b.String()
}

// splitWords splits a line at spaces that are not within single quotes.
func splitWords(line string) (words []string) {
	joins := false // the quoted part continues a word
	for i, part := range strings.Split(line, "'") {
		switch {
		case i%2 == 0:
			words = append(words, strings.Fields(part)...)
			joins = part != "" && !strings.HasSuffix(part, " ")
		case joins:
			words[len(words)-1] += part
		default:
			words = append(words, part)
		}
	}
	return words
}

// number compares a count with the one that a script expects: a number, or the least and the most with ".." between them.
func number(got int, want string) error {
	least, most, isRange := strings.Cut(want, "..")
	if !isRange {
		most = least
	}
	low, err := strconv.Atoi(least)
	if err != nil {
		return err
	}
	high, err := strconv.Atoi(most)
	if err == nil && (got < low || got > high) {
		err = fmt.Errorf("there were %d", got)
	}
	return err
}
