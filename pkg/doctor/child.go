// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// A child is this program as a process of its own, which carries out messages. It exits when its input ends, so it does
// not outlive this process.
type child struct {
	process *os.Process
	in      *os.File
	out     *os.File
	answers *json.Decoder
}

// A message is a command to a child, or its reply.
type message struct {
	Net     *podNet       `json:"net,omitempty"` // the network to configure
	Probes  []Probe       `json:"probes,omitempty"`
	Timeout time.Duration `json:"timeout,omitempty"` // timeout of one probe
	File    *fileRequest  `json:"file,omitempty"`    // the file to read

	Outcomes []Outcome `json:"outcomes"` // outcomes of Probes, in their order
	Content  *content  `json:"content,omitempty"`
	Error    string    `json:"error"`
}

// startChild starts command, an argv that runs [Serve]. Without stderr, a child that hangs keeps no file of its parent open.
func startChild(command []string, stderr *os.File, attr *syscall.SysProcAttr) (*child, error) {
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = theirs.Close() }()
	out, their, err := os.Pipe()
	if err != nil {
		_ = ours.Close()
		return nil, err
	}
	defer func() { _ = their.Close() }()
	process, err := os.StartProcess(command[0], command, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{theirs, their, stderr}, Sys: attr,
	})
	if err != nil {
		_, _ = ours.Close(), out.Close()
		return nil, err
	}
	return &child{process: process, in: ours, out: out, answers: json.NewDecoder(out)}, nil
}

// do sends a command to the child and returns its reply. If ctx ends first, the child can no longer be used.
func (c *child) do(ctx context.Context, m message) (message, error) {
	defer context.AfterFunc(ctx, func() {
		_ = c.process.Kill()
		_ = c.out.SetReadDeadline(time.Unix(1, 0)) // end the read here too: a child in an uninterruptible system call ends only after the call
	})()
	var r message
	err := json.NewEncoder(c.in).Encode(m)
	if err == nil {
		err = c.answers.Decode(&r)
	}
	if err != nil {
		return r, errors.Join(ctx.Err(), fmt.Errorf("communicating with a child process: %w", err))
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

// stop kills the child and does not wait. The channel receives the result of the wait once the child has ended.
func (c *child) stop() <-chan error {
	_ = c.in.Close()
	_ = c.process.Kill() // it has no state to save
	_ = c.out.Close()
	ended := make(chan error, 1)
	go func() { // ends with the child
		_, err := c.process.Wait()
		ended <- err
	}()
	return ended
}

// Serve is the child process of [Run]. It reads commands from in and writes results to
// out until in ends. It then returns at once, because no process waits for its results.
func Serve(ctx context.Context, in io.Reader, out io.Writer, now func() time.Time) error {
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	commands, ended := make(chan message), error(nil)
	go func() { // the goroutine ends when in does: nothing else unblocks its read
		defer close(commands)
		defer cancel()
		ended = readCommands(working, in, commands)
	}()
	results := json.NewEncoder(out)
	for {
		select {
		case c, ok := <-commands:
			if !ok {
				return ended
			}
			if err := results.Encode(c.run(working, now)); err != nil {
				return fmt.Errorf("answering: %w", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// readCommands passes on the commands from in, until it or ctx ends.
func readCommands(ctx context.Context, in io.Reader, commands chan<- message) error {
	for d := json.NewDecoder(in); ; {
		var c message
		if err := d.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading a command: %w", err)
		}
		select {
		case commands <- c:
		case <-ctx.Done():
			return nil
		}
	}
}

func (m *message) run(ctx context.Context, now func() time.Time) (r message) {
	var failed []error
	if m.Net != nil {
		failed = append(failed, m.Net.setup(ctx))
	}
	if m.File != nil {
		read, err := m.File.read()
		r.Content, failed = &read, append(failed, err)
	}
	if err := errors.Join(failed...); err != nil {
		r.Error = err.Error()
	}
	r.Outcomes = (&Config{Timeout: m.Timeout, Now: now}).probeAll(ctx, m.Probes)
	return r
}
