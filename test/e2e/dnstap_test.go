// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	framestream "github.com/farsightsec/golang-framestream"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// collect runs the program dnstap of golang-dnstap, which writes what it gets to a file, and returns both paths.
func collect(t *testing.T, flags ...string) (socket, file string) {
	t.Helper()
	dir := t.TempDir()
	program, socket, file := filepath.Join(dir, "dnstap"), filepath.Join(dir, "socket"), filepath.Join(dir, "messages")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/dnstap/golang-dnstap/dnstap")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building dnstap: %v\n%s", err, out)
	}
	proctest.Start(t, "dnstap", exec.Command(program, append(flags, "-u", socket, "-w", file)...))
	proctest.Eventually(t, time.Minute, "dnstap listens", func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	return socket, file
}

// TestDnstap has a miss and a hit read by a program that is not ours, and by `node-cache watch`.
func TestDnstap(t *testing.T) {
	t.Parallel()
	socket, file := collect(t, "-q")
	up := startScripted(t, answerA)
	a := startAgent(t, settings{to: []string{up}, socket: proctest.SocketPath(t), more: fmt.Sprintf("log: {dnstap: \"unix://%s\"}", socket)})
	watch := proctest.Start(t, "watch", exec.Command(nodeCache, "watch", "--admin", "unix:"+a.settings.socket, "--name", "test", "-o", "json"))
	host, _ := splitPort(t, a.addr)
	proctest.Eventually(t, time.Minute, "watch shows a query", func() bool {
		runCommand(t, nodeCache, "query", "--server", a.addr, "first.test")
		return strings.Contains(watch.Tail(100), "first.test")
	})
	for range 2 {
		runCommand(t, nodeCache, "query", "--server", a.addr, "www.test")
	}
	want := []string{
		"CQ " + host + " UDP www.test. IN A", "FQ " + up[:strings.LastIndex(up, ":")] + " UDP www.test. IN A",
		"FR " + up[:strings.LastIndex(up, ":")] + " UDP www.test. IN A", "CR " + host + " UDP www.test. IN A",
		"CQ " + host + " UDP www.test. IN A", "CR " + host + " UDP www.test. IN A",
	}
	var got []string
	proctest.Eventually(t, time.Minute, "dnstap has the messages", func() bool {
		text, err := os.ReadFile(file)
		assert.NoError(t, err)
		got = nil
		for _, m := range regexp.MustCompile(`(?m)^\S+ (\w\w \S+ \w+) \d+b "((?i:www.test.))" (IN A)$`).FindAllStringSubmatch(string(text), -1) {
			got = append(got, m[1]+" "+strings.ToLower(m[2])+" "+m[3]) // upstreams answer in random case
		}
		return len(got) >= len(want)
	}, func() string { return strings.Join(got, "\n") })
	assert.Equal(t, "messages", strings.Join(want, "\n"), strings.Join(got, "\n"))
	var sources, upstreams []string
	proctest.Eventually(t, time.Minute, "watch shows both queries", func() bool {
		sources, upstreams = nil, nil
		for line := range strings.Lines(watch.Tail(100)) {
			var q struct {
				Name, Source, Upstream string
				Took                   float64 `json:"took_seconds"`
			}
			if json.Unmarshal([]byte(line), &q) == nil && q.Name == "www.test." && q.Took > 0 {
				sources, upstreams = append(sources, q.Source), append(upstreams, q.Upstream)
			}
		}
		return len(sources) >= 2
	})
	assert.Equal(t, "sources", "upstream cache", strings.Join(sources, " "))
	assert.Equal(t, "upstreams", "udp://"+up+" ", strings.Join(upstreams, " "))
}

// TestDnstapLoad loads an agent on a core of its own with 100,000 queries a second, without and with a collector. Each message is
// delivered or counted as dropped, and the times of replies hardly change.
func TestDnstapLoad(t *testing.T) {
	if !proctest.Soak() || os.Geteuid() != 0 {
		t.Skip("a soak: it needs root for real-time priorities")
	}
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "socket"), filepath.Join(dir, "messages")
	capture := proctest.Start(t, "fstrm_capture", onCore(1, 2, proctest.FindProgram(t, "fstrm_capture", "fstrm-bin"),
		"-t", "protobuf:dnstap.Dnstap", "-u", socket, "-w", file))
	a, _, without := loadDnstap(t, "")
	a.Stop(t)
	a, queries, with := loadDnstap(t, "unix://"+socket)
	if with > without+250*time.Microsecond { // the collector delays the load generator, whose queries then come in bursts
		t.Errorf("p99 is %s, without a collector %s", with, without)
	}
	var sent, dropped int
	proctest.Eventually(t, time.Minute, "each message is sent or dropped", func() bool {
		page, err := a.Page("/metrics")
		assert.NoError(t, err)
		sent, dropped = metric(t, page, "nodecache_dnstap_sent_total"), metric(t, page, "nodecache_dnstap_dropped_total")
		return sent+dropped >= 2*queries
	}, func() string { return fmt.Sprintf("%d queries: %d sent, %d dropped", queries, sent, dropped) })
	a.Stop(t)
	capture.Stop(time.Minute)
	delivered := frames(t, file)
	t.Logf("%d queries: %d messages sent, %d delivered, %d dropped", queries, sent, delivered, dropped)
	if delivered < sent || delivered > sent+100 { // the agent sends a few more until it stops
		t.Errorf("%d messages delivered of %d", delivered, sent)
	}
}

// onCore returns a command that runs on one core, with a real-time priority: no other program of the machine gets the core meanwhile.
func onCore(core, priority int, command ...string) *exec.Cmd {
	return exec.Command("chrt", append([]string{"-f", strconv.Itoa(priority), "taskset", "-c", strconv.Itoa(core)}, command...)...)
}

// loadDnstap loads an agent that sends its messages to a collector, and returns it with the number of queries and the p99 of the probes.
// They run on the other core, as load and collector do, before both.
func loadDnstap(t *testing.T, to string) (a *agent, queries int, p99 time.Duration) {
	t.Helper()
	s := settings{address: "127.0.0.1", port: freePort(t), admin: freePort(t), to: []string{startScripted(t, answerA)}}
	s.more = fmt.Sprintf("log: {dnstap: %q}", to)
	config := writeFile(t, filepath.Join(t.TempDir(), "config.yaml"), s.yaml())
	a = launch(t, s, onCore(0, 1, nodeCache, "agent", "--config", config), config)
	runCommand(t, nodeCache, "query", "--server", a.addr, "www.test")
	names := writeFile(t, filepath.Join(t.TempDir(), "names"), "www.test A\n")
	dnsperf := []string{proctest.FindProgram(t, "dnsperf", "dnsperf"), "-s", s.address, "-p", strconv.Itoa(s.port), "-d", names, "-l", "20"}
	load := proctest.Start(t, "dnsperf", onCore(1, 1, append(dnsperf, "-c", "8", "-Q", "100000")...))
	out, err := onCore(1, 3, append(dnsperf, "-v", "-q", "1", "-Q", "1000")...).Output()
	assert.NoError(t, err)
	var took []time.Duration
	for _, m := range regexp.MustCompile(`(?m)^> NOERROR \S+ \S+ (\S+)$`).FindAllSubmatch(out, -1) {
		d, err := time.ParseDuration(string(m[1]) + "s")
		assert.NoError(t, err)
		took = append(took, d)
	}
	slices.Sort(took)
	assert.NoError(t, load.Wait(t, time.Minute))
	completed := regexp.MustCompile(`Queries completed: +(\d+)`).FindStringSubmatch(load.Tail(100))
	queries, err = strconv.Atoi(completed[1])
	assert.NoError(t, err)
	p99 = took[len(took)*99/100]
	t.Logf("collector %q: %d queries; %d probes: median %s, p99 %s", to, queries, len(took), took[len(took)/2], p99)
	return a, queries, p99
}

// metric returns the value of a series without labels.
func metric(t *testing.T, page, name string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("no %s in %s", name, page)
	}
	n, err := strconv.ParseFloat(m[1], 64)
	assert.NoError(t, err)
	return int(n)
}

// frames counts the messages in a file of Frame Streams.
func frames(t *testing.T, path string) (n int) {
	t.Helper()
	f, err := os.Open(path)
	assert.NoError(t, err)
	defer func() { _ = f.Close() }()
	in, err := framestream.NewReader(f, &framestream.ReaderOptions{ContentTypes: [][]byte{[]byte("protobuf:dnstap.Dnstap")}})
	assert.NoError(t, err)
	room := make([]byte, 1<<17)
	for {
		if _, err := in.ReadFrame(room); err != nil {
			return n
		}
		n++
	}
}
