// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Names of the subjects that the report treats apart from the peers.
const (
	floorName = "floor"
	oursName  = "node-cache"
)

// A site is where one start of a subject happens.
type site struct {
	dir      string // its folder, empty at the start
	conf     string // path of its configuration
	port     int    // to listen on
	upstream int    // port of the upstream
	metrics  int    // a second port, for those that have no other way to be idle but to export
	cluster  string // folder of a cluster's manifests
}

// A subject is a server that is measured.
type subject struct {
	name    string
	find    func(b builder, ctx context.Context) (path string, err error)
	version []string              // arguments that make it print its version; none: find's own
	config  func(s site) string   // its configuration; nil: it takes flags only
	zone    func(s site) string   // its configuration as a server of a cluster's zone; nil: it is none without an API server
	overTCP func(s site) string   // its configuration with the upstream asked over TCP; nil: it keeps no connections for many queries
	args    func(s site) []string // its command line without the program
	load    string                // the one load that it can serve; empty: all of them, as far as it can be started for them
}

// subjects returns every server, in the order in which they run and are reported.
func subjects() []subject {
	return []subject{
		{
			name: floorName, find: builder.floor,
			args: func(s site) []string { return []string{loopback, strconv.Itoa(s.port)} },
			load: "hit", // it has one fixed answer, over UDP
		},
		{
			name: oursName, find: builder.given, version: []string{"version"}, config: nodeCacheConfig, zone: zoneConfig, overTCP: nodeCacheOverTCP,
			args: func(s site) []string { return []string{"agent", "--config", s.conf} },
		},
		{
			name: "coredns", find: builder.coredns, version: []string{"-version"}, config: corefile, overTCP: corefileOverTCP,
			args: func(s site) []string { return []string{"-quiet", "-conf", s.conf} },
		},
		{
			name: "unbound", find: installed("unbound"), version: []string{"-V"}, config: unboundConfig, overTCP: unboundOverTCP,
			args: func(s site) []string { return []string{"-d", "-c", s.conf} },
		},
		{
			name: "dnsdist", find: installed("dnsdist"), version: []string{"--version"}, config: dnsdistConfig, overTCP: dnsdistOverTCP,
			args: func(s site) []string { return []string{"--supervised", "--disable-syslog", "-C", s.conf} },
		},
		{
			name: "kresd", find: installed("kresd"), version: []string{"--version"}, config: kresdConfig,
			args: func(s site) []string { return []string{"-n", "-q", "-c", s.conf, s.dir} },
		},
		{name: "dnsmasq", find: installed("dnsmasq"), version: []string{"--version"}, args: dnsmasqArgs},
		{name: "pdns_recursor", find: installed("pdns_recursor"), version: []string{"--version"}, args: recursorArgs},
	}
}

func subjectNames() []string {
	all := subjects()
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.name
	}
	return names
}

// A builder gets the programs that Debian does not have.
type builder struct {
	dir       string // for what it builds
	source    string // folder of the bench module
	nodeCache string // path of the node-cache binary, or empty
}

// floor compiles the C program that this binary carries.
func (b builder) floor(ctx context.Context) (string, error) {
	source, path := filepath.Join(b.dir, "floor.c"), filepath.Join(b.dir, floorName)
	if err := os.WriteFile(source, []byte(floorSource), 0o600); err != nil {
		return "", fmt.Errorf("writing the floor's source: %w", err)
	}
	return path, output(exec.CommandContext(ctx, "cc", "-O2", "-o", path, source))
}

// coredns builds CoreDNS at the version of the bench module's go.mod.
func (b builder) coredns(ctx context.Context) (string, error) {
	path := filepath.Join(b.dir, "coredns")
	return path, output(exec.CommandContext(ctx, "go", "build", "-C", b.source, "-trimpath", "-o", path, "./coredns"))
}

// given checks the binary named on the command line.
func (b builder) given(context.Context) (string, error) {
	if b.nodeCache == "" {
		return "", errors.New("no --node-cache given")
	}
	path, err := filepath.Abs(b.nodeCache)
	if err != nil {
		return "", fmt.Errorf("resolving --node-cache: %w", err)
	}
	if _, err := exec.LookPath(path); err != nil {
		return "", fmt.Errorf("%s cannot be run", filepath.Base(path))
	}
	return path, nil
}

// installed finds a program of the distribution, also where the folders of daemons are not on the PATH.
func installed(program string) func(builder, context.Context) (string, error) {
	return func(builder, context.Context) (string, error) {
		return lookProgram(program)
	}
}

func lookProgram(program string) (string, error) {
	for _, path := range []string{program, "/usr/sbin/" + program, "/sbin/" + program, "/usr/local/sbin/" + program} {
		if found, err := exec.LookPath(path); err == nil {
			return found, nil
		}
	}
	return "", errors.New("not installed")
}

// output runs a build and makes its last line the error.
func output(cmd *exec.Cmd) error {
	dieWithUs(cmd)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("building with %s: %w: %s", filepath.Base(cmd.Path), err, lastLine(string(text)))
	}
	return nil
}

// programVersion asks a program for its version; one that does not tell has the version "unknown".
func programVersion(ctx context.Context, path string, args []string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	dieWithUs(cmd)
	text, err := cmd.CombinedOutput()
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
