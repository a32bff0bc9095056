// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/plain"
)

const (
	// atOnce bounds the nodes asked at the same time, and with maxReply the memory.
	atOnce = 32
	// nodeTimeout bounds the time of the requests to one node.
	nodeTimeout = 15 * time.Second
	// maxCell bounds the characters of a node's text in a table.
	maxCell = 200
)

// each calls ask for all nodes whose err is nil, and sets each node's err to the result. It ends early if the API server refuses the user.
func (c *cluster) each(cmd *cobra.Command, nodes []*node, ask func(context.Context, *node) error) error {
	p := progress{out: cmd.ErrOrStderr(), total: len(nodes)}
	g, all := errgroup.WithContext(cmd.Context())
	g.SetLimit(atOnce)
	for _, n := range nodes {
		if n.err != nil {
			continue
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(all, c.timeout)
			defer cancel()
			n.err = ask(ctx, n)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				n.err = fmt.Errorf("no answer within %s", c.timeout)
			}
			p.add()
			if isDenied(n.err) {
				return c.apiError(n.err)
			}
			return nil
		})
	}
	err := g.Wait()
	p.end()
	return err
}

// A progress shows on a terminal how many nodes have been asked.
type progress struct {
	out   io.Writer
	total int

	mu   sync.Mutex
	done int // guarded by mu
}

// add counts a node as asked, and shows the count.
func (p *progress) add() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	p.show(fmt.Sprintf("%d of %d nodes", p.done, p.total))
}

// end removes the count.
func (p *progress) end() { p.show("") }

// show replaces the terminal's current line with text. If out is no terminal, it does nothing.
func (p *progress) show(text string) {
	if f, isFile := p.out.(*os.File); isFile && term.IsTerminal(int(f.Fd())) {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K"+text)
	}
}

// show prints value as JSON if output is json, else text.
func show(cmd *cobra.Command, output, text string, value any) error {
	if output == "json" {
		return cli.PrintJSON(cmd.OutOrStdout(), value)
	}
	return cli.PrintPlain(cmd.OutOrStdout(), []byte(text))
}

// failures prints the nodes that failed with their hints, and returns exit code 1 if there is one, or if an agent is missing.
func failures(stderr io.Writer, nodes []*node, missing int) error {
	result := error(nil)
	for _, n := range nodes {
		if n.err != nil {
			cli.PrintError(stderr, "node "+n.name+": "+cell(n.err.Error()), hint.Of(n.err))
			result = cli.ExitError(cli.ExitFailed)
		}
	}
	if missing > 0 {
		cli.PrintError(stderr, fmt.Sprintf("%d nodes should have an agent and have none", missing), "`kubectl describe daemonset` shows why")
		result = cli.ExitError(cli.ExitFailed)
	}
	return result
}

// succeeded returns how many nodes have no error.
func succeeded(nodes []*node) int {
	count := 0
	for _, n := range nodes {
		if n.err == nil {
			count++
		}
	}
	return count
}

// cell returns a node's text in one line that is not too long.
func cell(text string) string {
	line := []rune(plain.Line(text))
	if len(line) > maxCell {
		return string(line[:maxCell]) + " …"
	}
	return string(line)
}
