// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/plain"
)

func watchCommand() *cobra.Command {
	var flags adminFlags
	var filter cli.WatchFlags
	cmd := &cobra.Command{
		Use:   "watch [flags]",
		Short: "Show the queries of this node live",
		Long: `Show the queries of this node live, a line for each reply, until Ctrl-C is pressed. The
flags select queries; all that are given must match. The last column says how the reply
came about, as query --explain does. The agent sends at most 1,000 lines a second, and
then the number of the others. With -o json each line is an object like one of the query
log (log.queries).

The agent needs admin.socket in its configuration, for --pod and --namespace also
pods.identity.

Exit code 0: ended by Ctrl-C; 1: the agent did not respond, or has ended; 2: invalid
command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := newAdminClient(flags.admin)
			if err != nil {
				return &cli.UsageError{Err: err}
			}
			return c.watch(cmd, filter.Parameters(), flags.output == "json")
		},
	}
	flags.add(cmd)
	filter.Add(cmd, "namespace")
	return cmd
}

// watch shows the queries that the parameters select.
func (c *adminClient) watch(cmd *cobra.Command, given url.Values, asJSON bool) error {
	c.http.Timeout = 0
	r, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, c.base+"/watch?"+given.Encode(), nil)
	if err != nil {
		return err
	}
	reply, err := c.http.Do(r)
	if err != nil {
		return c.connectError(err)
	}
	defer func() { _ = reply.Body.Close() }()
	if reply.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(reply.Body, maxReason))
		return c.refusedError("/watch", reply.StatusCode, string(why))
	}
	lines := cli.WatchLines(reply.Body)
	for lines.Scan() {
		line := string(plain.JSON(lines.Bytes()))
		if !asJSON {
			if line, err = cli.WatchText(lines.Bytes()); err != nil {
				return fmt.Errorf("reading /watch of the agent at %s: %w", c.where, err)
			}
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
			return err
		}
	}
	if cmd.Context().Err() != nil {
		return nil // Ctrl-C
	}
	return fmt.Errorf("the agent at %s ended the stream: %w", c.where, cmp.Or(lines.Err(), io.EOF))
}
