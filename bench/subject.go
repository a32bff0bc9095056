// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os/exec"
	"strings"
	"time"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// Names of the subjects that the report treats apart from the peers.
const (
	floorName = "floor"
	oursName  = "node-cache"
	podsName  = "node-cache-pods" // it counts by pod and name
)

// A subject is a server that is measured.
type subject struct {
	server

	version string // argument that makes it print its version; empty: it has none
	overTCP bool   // it can be set to ask the upstream over TCP, and keeps connections for many queries
	load    string // the one load that it can serve; empty: all of them, as far as it can be started for them
	tcp     bool   // this start of it asks the upstream over TCP
}

// subjects returns every server, in the order in which they run and are reported.
func subjects() []subject {
	return []subject{
		{server: server{name: floorName, args: floorArgs}, load: "hit"}, // it has one fixed answer, over UDP
		{server: server{name: oursName, config: "node-cache.yaml", args: "agent --config {{.Conf}}"}, overTCP: true, version: "version"},
		{server: server{name: podsName, config: "node-cache-pods.yaml", args: "agent --config {{.Conf}}"}, load: "hit", version: "version"},
		{server: server{name: "coredns", config: "Corefile", args: "-quiet -conf {{.Conf}}"}, overTCP: true, version: "-version"},
		{server: server{name: "unbound", config: "unbound.conf", args: "-d -c {{.Conf}}"}, overTCP: true, version: "-V"},
		{server: server{name: "dnsdist", config: "dnsdist.conf", args: "--supervised --disable-syslog -C {{.Conf}}"}, overTCP: true, version: "--version"},
		{server: server{name: "kresd", config: "kresd.conf", args: "-n -q -c {{.Conf}} {{.Dir}}"}, version: "--version"},
		{server: server{name: "dnsmasq", args: dnsmasqArgs}, version: "--version"},
		{server: server{name: "pdns_recursor", args: recursorArgs}, version: "--version"},
	}
}

// find finds or builds a subject's program.
func (b *serversBench) find(ctx context.Context, s *subject) (string, error) {
	switch s.name {
	case floorName:
		return b.compile(ctx, floorName, floorSource)
	case oursName, podsName:
		return proctest.LookProgram(b.opts.nodeCache)
	case "coredns":
		return kubetest.Program(ctx, s.name)
	default: // of the distribution
		return proctest.LookProgram(s.name)
	}
}

// starts are the ways in which a round starts the server.
func (s *subject) starts() []subject {
	starts := []subject{*s}
	if s.overTCP {
		start := *s
		start.tcp = true
		starts = append(starts, start)
	}
	return starts
}

// serves reports whether the load is for this start of the server.
func (s *subject) serves(l load) bool {
	return l.overTCP == s.tcp && (s.load == "" || s.load == l.name)
}

// programVersion asks a program for its version; one that does not print it has the version "unknown".
func programVersion(ctx context.Context, path, arg string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	text, err := exec.CommandContext(ctx, path, arg).CombinedOutput()
	if err != nil && len(text) == 0 {
		return "unknown"
	}
	return parseVersion(string(text))
}

// parseVersion finds the first word that looks like a version: a digit first, and a dot in it. Ours may be a commit.
func parseVersion(text string) string {
	if rest, ours := strings.CutPrefix(text, oursName+" "); ours {
		return strings.Fields(rest + " unknown")[0]
	}
	for word := range strings.FieldsSeq(text) {
		word = strings.Trim(strings.TrimPrefix(word, "CoreDNS-"), ",;()")
		bare := strings.TrimPrefix(word, "v")
		if bare != "" && bare[0] >= '0' && bare[0] <= '9' && strings.Contains(bare, ".") {
			return word
		}
	}
	return "unknown"
}
