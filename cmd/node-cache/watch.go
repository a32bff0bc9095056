// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/plain"
)

// maxLine bounds the bytes of a line of /watch. A name has at most 1,004 as text, a pod 317, the path of a hosts file 4,096.
const maxLine = 16 << 10

func watchCommand() *cobra.Command {
	var flags adminFlags
	filter := map[string]*string{}
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

// watchLine formats a line of /watch. The members that follow the client are those of the explanation, and the extended error.
func watchLine(text []byte) (string, error) {
	var q struct {
		Time                                   time.Time
		Name, Type, Rcode, Source, Client, Pod string
		Took                                   float64 `json:"took_seconds"`
		Dropped                                uint64

		Upstream, Failure, Reason, Denied, Below, Rule string
		EDE                                            *int   `json:"ede"`
		EDEText                                        string `json:"ede_text"`
	}
	if err := cli.ReadJSON(text, &q); err != nil {
		return "", err
	}
	if q.Dropped > 0 {
		return fmt.Sprintf("(%d more)", q.Dropped), nil
	}
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "%s  %-8s %-8s %9s  %-5s %s  %s", q.Time.Format("15:04:05.000"), q.Rcode, q.Source,
		time.Duration(q.Took*float64(time.Second)).Round(10*time.Microsecond), q.Type, q.Name, cmp.Or(q.Pod, q.Client))
	for _, member := range [][2]string{
		{"upstream", q.Upstream}, {"failure", q.Failure}, {"reason", q.Reason}, {"denied", q.Denied}, {"below", q.Below}, {"rule", q.Rule},
	} {
		if member[1] != "" {
			_, _ = fmt.Fprintf(&b, "  %s=%s", member[0], member[1])
		}
	}
	if q.EDE != nil {
		_, _ = fmt.Fprintf(&b, "  extended error %d (%s)", *q.EDE, q.EDEText)
	}
	return plain.Line(b.String()), nil
}
