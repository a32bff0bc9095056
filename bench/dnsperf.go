// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// perf is what one run of dnsperf counted.
type perf struct {
	version   string           // of dnsperf
	completed int64            // queries that got an answer
	lost      int64            // queries without an answer within the time-out
	seconds   float64          // run time
	qps       float64          // answers per second
	latency   time.Duration    // mean of the answered queries
	rcodes    map[string]int64 // answers by response code
	cpu       time.Duration    // user and system time of dnsperf itself
}

// wrong is the number of answers with another response code than the one given.
func (p perf) wrong(rcode string) int64 {
	var n int64
	for code, count := range p.rcodes {
		if code != rcode {
			n += count
		}
	}
	return n
}

// A dnsperfRun is one run of dnsperf.
type dnsperfRun struct {
	list    string // path of the queries
	port    int
	seconds int // 0: the list once, from its start to its end
	tcp     bool
}

// args is dnsperf's command line: 8 clients in one thread, 400 queries in flight, lost after 2 s.
func (r dnsperfRun) args() []string {
	args := []string{"dnsperf", "-s", loopback, "-p", strconv.Itoa(r.port), "-d", r.list, "-c", "8", "-T", "1", "-q", "400", "-t", "2"}
	if r.seconds > 0 {
		args = append(args, "-l", strconv.Itoa(r.seconds))
	} else {
		args = append(args, "-n", "1")
	}
	if r.tcp {
		args = append(args, "-m", "tcp")
	}
	return args
}

// run runs dnsperf on the other CPU and waits for its figures.
func (r dnsperfRun) run(ctx context.Context) (perf, error) {
	p, err := launch(ctx, otherCPU, "", "dnsperf", r.args())
	if err != nil {
		return perf{}, err
	}
	defer p.Kill()
	// A list that is run once ends by itself; a server that answers nothing must not hold up the run.
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.seconds)*time.Second+time.Minute)
	defer cancel()
	select {
	case <-p.Done():
	case <-ctx.Done():
		return perf{}, fmt.Errorf("running dnsperf: %w", ctx.Err())
	}
	if err := p.Err(); err != nil {
		return perf{}, fmt.Errorf("running dnsperf: %w: %s", err, lastLine(p.Stderr.String()))
	}
	result, err := parsePerf(p.Stdout.String())
	result.cpu = p.CPUTime()
	return result, err
}

// parsePerf reads dnsperf's report.
//
// Every figure that perf holds has to be there: a changed format is an error, not a zero.
func parsePerf(out string) (perf, error) {
	fields := make(map[string]string)
	result := perf{rcodes: make(map[string]int64)}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if version, ok := strings.CutPrefix(line, "Version "); ok {
			result.version = version
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
	result.completed = int64(number("Queries completed"))
	result.lost = int64(number("Queries lost"))
	result.seconds = number("Run time (s)")
	result.qps = number("Queries per second")
	result.latency = time.Duration(number("Average Latency (s)") * float64(time.Second))
	if err := parseRcodes(fields["Response codes"], result.rcodes); err != nil {
		errs = append(errs, err)
	}
	return result, errors.Join(errs...)
}

// parseRcodes adds the counts of a line like "NOERROR 10 (83.33%), SERVFAIL 2 (16.67%)" to codes.
func parseRcodes(line string, codes map[string]int64) error {
	if line == "" {
		return nil // no answer at all
	}
	for part := range strings.SplitSeq(line, ",") {
		words := strings.Fields(part)
		if len(words) < 2 {
			return fmt.Errorf("reading dnsperf's response codes: %q", part)
		}
		n, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			return fmt.Errorf("reading dnsperf's response codes: %w", err)
		}
		codes[words[0]] += n
	}
	return nil
}
