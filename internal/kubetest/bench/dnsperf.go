// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// perf is what one run of dnsperf counted.
type perf struct {
	version   string // of dnsperf
	completed int64  // queries that got an answer
	lost      int64  // queries without an answer within the time-out
	qps       float64
	right     int64         // answers with the response code asked for
	cpu       time.Duration // of dnsperf itself
}

// A dnsperfRun is one run of dnsperf.
type dnsperfRun struct {
	list    string // path of the queries
	port    int
	seconds int // 0: the list once, from its start to its end
	tcp     bool
	rcode   string // of a right answer
}

// args is dnsperf's command line, that of `make bench`: 8 clients in one thread, 400 queries in flight, lost after 2 s.
func (v dnsperfRun) args() []string {
	args := []string{"dnsperf", "-s", loopback, "-p", strconv.Itoa(v.port), "-d", v.list, "-c", "8", "-T", "1", "-q", "400", "-t", "2"}
	if v.seconds > 0 {
		args = append(args, "-l", strconv.Itoa(v.seconds))
	} else {
		args = append(args, "-n", "1")
	}
	if v.tcp {
		args = append(args, "-m", "tcp")
	}
	return args
}

// run runs dnsperf on the other CPU and waits for its figures.
func (v dnsperfRun) run(ctx context.Context) (perf, error) {
	// A server that answers nothing must not hold up the run.
	ctx, cancel := context.WithTimeout(ctx, time.Duration(v.seconds)*time.Second+time.Minute)
	defer cancel()
	cmd := command(ctx, v.args())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := startPinned(cmd, otherCPU); err != nil {
		return perf{}, fmt.Errorf("starting dnsperf: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return perf{}, fmt.Errorf("running dnsperf: %w: %s", err, lastLine(stderr.String()))
	}
	p, err := parsePerf(stdout.String(), v.rcode)
	p.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return p, err
}

// parsePerf reads dnsperf's report. Every figure that perf holds has to be there: a changed format is an error, not
// a zero.
func parsePerf(out, rcode string) (perf, error) {
	fields := make(map[string]string)
	var p perf
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if version, ok := strings.CutPrefix(line, "Version "); ok {
			p.version = version
		}
		if key, value, ok := strings.Cut(line, ":"); ok && fields[key] == "" {
			fields[key] = strings.TrimSpace(value)
		}
	}
	var errs []error
	number := func(key string) float64 {
		first, _, _ := strings.Cut(fields[key], " ")
		n, err := strconv.ParseFloat(first, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("reading dnsperf's %q: %w", key, err))
		}
		return n
	}
	p.completed = int64(number("Queries completed"))
	p.lost = int64(number("Queries lost"))
	p.qps = number("Queries per second")
	var err error
	if p.right, err = countRcode(fields["Response codes"], rcode); err != nil {
		errs = append(errs, err)
	}
	return p, errors.Join(errs...)
}

// countRcode finds a code's count in a line like "NOERROR 10 (83.33%), SERVFAIL 2 (16.67%)".
func countRcode(line, rcode string) (int64, error) {
	if line == "" {
		return 0, nil // no answer at all
	}
	for part := range strings.SplitSeq(line, ",") {
		words := strings.Fields(part)
		if len(words) < 2 {
			return 0, fmt.Errorf("reading dnsperf's response codes: %q", part)
		}
		if words[0] == rcode {
			return strconv.ParseInt(words[1], 10, 64)
		}
	}
	return 0, nil
}

// findProgram finds a program, also where the folders of daemons are not on the PATH.
func findProgram(program string) (string, error) {
	for _, folder := range []string{"", "/usr/sbin/", "/sbin/", "/usr/local/sbin/"} {
		if found, err := exec.LookPath(folder + program); err == nil {
			return filepath.Abs(found)
		}
	}
	return "", fmt.Errorf("%s is not installed", program)
}
