// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/plain"
)

// maxLine bounds the bytes of a line of /watch. A name has at most 1,004 as text, a pod 317.
const maxLine = 8 << 10

func watchCommand() *cobra.Command {
	var flags adminFlags
	filter := map[string]*string{}
	cmd := &cobra.Command{
		Use:   "watch [flags]",
		Short: "Show the queries of this node live",
		Long: `Show the queries of this node live, a line for each reply, until Ctrl-C is pressed. The
flags select queries; all that are given must match. The agent sends at most 1,000 lines a
second, and then the number of the others. With -o json each line is an object like one of
the query log (log.queries).

The agent needs admin.socket in its configuration, for --pod and --namespace also
pods.identity.

Exit code 0: ended by Ctrl-C; 1: the agent did not respond, or has ended; 2: invalid
command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := url.Values{}
			for name, value := range filter {
				if *value != "" {
					given.Set(name, *value)
				}
			}
			c, err := newAdminClient(flags.admin)
			if err != nil {
				return &cli.UsageError{Err: err}
			}
			return c.watch(cmd, given, flags.output == "json")
		},
	}
	flags.add(cmd)
	for name, usage := range map[string]string{
		"pod": "only queries of `NAMESPACE/POD`", "namespace": "only queries of pods of `NAMESPACE`",
		"name": "only queries for names at and below `DOMAIN`", "rcode": "only replies with `RCODE`, such as NXDOMAIN",
		"source": "only replies from `SOURCE`, such as cache or upstream",
	} {
		filter[name] = cmd.Flags().String(name, "", usage)
	}
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
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := string(plain.JSON(lines.Bytes()))
		if !asJSON {
			if line, err = watchLine(lines.Bytes()); err != nil {
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

// watchLine formats a line of /watch.
func watchLine(text []byte) (string, error) {
	var q struct {
		Time                                         time.Time
		Name, Type, Rcode, Source, Took, Client, Pod string
		Dropped                                      uint64
	}
	if err := cli.ReadJSON(text, &q); err != nil {
		return "", err
	}
	if q.Dropped > 0 {
		return fmt.Sprintf("(%d more)", q.Dropped), nil
	}
	took, err := time.ParseDuration(q.Took)
	if err != nil {
		return "", err
	}
	from := q.Client
	if q.Pod != "" {
		from = q.Pod
	}
	return plain.Line(fmt.Sprintf("%s  %-8s %-8s %9s  %-5s %s  %s", q.Time.Format("15:04:05.000"), q.Rcode, q.Source,
		took.Round(10*time.Microsecond), q.Type, q.Name, from)), nil
}
