// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/plain"
)

func watchCommand(c *cluster) *cobra.Command {
	w := &watcher{cluster: c}
	cmd := &cobra.Command{
		Use:   "watch [NODE]...",
		Short: "Show the queries of nodes live",
		Long: `Show the queries of nodes live, of all nodes if none is named, a line for each reply,
until Ctrl-C is pressed. A line begins with the node, and goes on as that of "node-cache
watch". The flags select queries; all that are given must match. Each agent sends at most
1,000 lines a second, and then the number of the others. With -o json each line is an
object with the node and the query.

The agents need admin.socket in their configuration, for --pod and --pod-namespace also
pods.identity.

Exit code 0: ended by Ctrl-C; 1: an agent did not respond, or has ended; 2: invalid
command line.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			nodes, err := w.nodes(cmd.Context(), args)
			if err != nil {
				return err
			}
			return w.watch(cmd, nodes)
		},
	}
	w.filter.Add(cmd, "pod-namespace") // --namespace is that of the agents
	cli.AddOutput(cmd, cmd.Flags(), &w.output)
	return cmd
}

// A watcher prints the queries of several nodes.
type watcher struct {
	cluster *cluster
	filter  cli.WatchFlags
	output  string

	mu sync.Mutex // a line is printed at a time: a slow terminal delays the agents, which leave lines out then
}

// nodes returns the nodes of these names, or all.
func (w *watcher) nodes(ctx context.Context, names []string) ([]*node, error) {
	all, _, err := w.cluster.nodes(ctx)
	if err != nil {
		return nil, err
	}
	list := all
	if len(names) > 0 {
		list = nil
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(n *node) bool { return n.name == name })
		if i < 0 {
			return nil, noAgent(name)
		}
		list = append(list, all[i])
	}
	if len(list) > atOnce {
		return nil, &hint.Error{Err: fmt.Errorf("%d nodes, and at most %d can be watched at once", len(list), atOnce), Hint: "name some of them"}
	}
	return list, nil
}

// watch prints the queries of the nodes until all of them have ended, or ctx ends.
func (w *watcher) watch(cmd *cobra.Command, nodes []*node) error {
	g, ctx := errgroup.WithContext(cmd.Context())
	for _, n := range nodes {
		g.Go(func() error {
			err := w.stream(ctx, cmd.OutOrStdout(), n)
			switch {
			case ctx.Err() != nil:
				return nil
			case isDenied(err):
				return w.cluster.apiError(err)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			cli.PrintError(cmd.ErrOrStderr(), "node "+n.name+": "+cell(err.Error()), hint.Of(err))
			return nil
		})
	}
	err := g.Wait()
	if err == nil && cmd.Context().Err() == nil { // not by Ctrl-C
		err = cli.ExitError(cli.ExitFailed)
	}
	return err
}

// stream prints the queries of a node until its stream ends.
func (w *watcher) stream(ctx context.Context, out io.Writer, n *node) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a, err := w.cluster.connect(ctx, n)
	if err != nil {
		return err
	}
	reply, err := a.get(ctx, "/watch?"+w.filter.Parameters().Encode())
	if err != nil {
		return err
	}
	defer func() { _ = reply.Body.Close() }()
	lines := cli.WatchLines(reply.Body)
	for lines.Scan() {
		line, err := w.format(n, lines.Bytes())
		if err != nil {
			return fmt.Errorf("reading a query: %w", err)
		}
		if err := w.print(out, line); err != nil {
			return err
		}
	}
	return a.whyEnded(cmp.Or(lines.Err(), io.EOF))
}

// format returns a line of the output for a line of a node. A node cannot name another: the agent's object is a member of its own.
func (w *watcher) format(n *node, line []byte) (string, error) {
	if w.output != "json" {
		text, err := cli.WatchText(line)
		return cell(n.name) + "  " + text, err
	}
	if !json.Valid(line) {
		return "", errors.New("no JSON")
	}
	text, err := json.Marshal(map[string]any{"node": n.name, "query": json.RawMessage(line)})
	return string(plain.JSON(text)), err
}

func (w *watcher) print(out io.Writer, line string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := fmt.Fprintln(out, line)
	return err
}
