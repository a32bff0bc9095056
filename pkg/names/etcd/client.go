// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/nodecache/node-cache/pkg/names/skydns"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/retry"
)

// Config configures a Client.
type Config struct {
	Endpoints     []string       // http://HOST:PORT, or all https://HOST:PORT
	Prefix        string         // prefix of all keys, with a slash at its end
	CA, Cert, Key string         // files (PEM), read for each connection; empty: the system's certificates, none, none
	ServerName    string         // name in the servers' certificates; empty: the host of the endpoint
	User          string         // empty: no authentication
	PasswordFile  string         // file with the user's password, read for each connection
	Source        *skydns.Source // receives the records
	Log           *slog.Logger
}

// A Client fills a source with the records of etcd, and keeps them up to date. It is safe for concurrent use.
type Client struct {
	cfg Config

	wait     retry.Backoff // delays between two sessions
	period   time.Duration // time between two checks of a watch, and timeout of one request
	readTime time.Duration // timeout of a read of all keys: etcd decides how many there are
	read     chan struct{} // closed once the source has records
	cluster  uint64        // ID of the cluster that the records were read from; for Run only

	failures atomic.Uint64 // see Stats.Failures
	reads    atomic.Uint64 // see Stats.Reads
	panics   atomic.Uint64 // see Stats.Panics

	mu        sync.Mutex // guards lastError
	lastError error      // error of the current or latest attempt; nil: etcd answers
}

const (
	// maxHeader bounds the headers of an answer, in bytes. gRPC sends an error in a header.
	maxHeader = 64 << 10
	// timeout bounds one request, and the time in which a server sends nothing.
	timeout = 10 * time.Second
	// maxMessage bounds the bytes of a message from etcd: etcd's largest value is 1.5 MiB by default.
	maxMessage = 4 << 20
)

// New returns a client. It reads no file and opens no connection.
func New(cfg Config) *Client {
	return &Client{
		cfg: cfg, wait: retry.Backoff{First: time.Second, Last: 30 * time.Second}, period: timeout, readTime: time.Minute, read: make(chan struct{}),
	}
}

// Source returns the source that has the records.
func (c *Client) Source() *skydns.Source { return c.cfg.Source }

// String names the task in logs.
func (c *Client) String() string { return "etcd" }

// Run keeps the source's records up to date until ctx ends, and returns nil then. It may be called once.
func (c *Client) Run(ctx context.Context) error {
	guard := panics.Guard{Where: "etcd", Log: c.cfg.Log, Count: &c.panics}
	for ctx.Err() == nil {
		c.wait.Begin()
		err := guard.Do(ctx, func() error { return c.session(ctx) })
		if errors.Is(err, errReadAgain) || errors.Is(err, errOther) {
			c.wait.Reset() // etcd answered
		}
		if ctx.Err() == nil && !errors.Is(err, errReadAgain) {
			c.setError(ctx, err)
		}
		_ = retry.Sleep(ctx, c.wait.Next()) // ends with ctx, as the loop does
	}
	return nil
}

// AwaitRead waits until the records have been read, and at most for limit.
func (c *Client) AwaitRead(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-c.read:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("etcd: reading the records within %s: %w", limit, cmp.Or(c.err(), ctx.Err()))
	}
}

// setError records the outcome of an attempt; nil: etcd answers. It counts errors, and logs the first of several and the recovery.
func (c *Client) setError(ctx context.Context, err error) {
	err = remote.Error(err)
	c.mu.Lock()
	before := c.lastError
	c.lastError = err
	c.mu.Unlock()
	switch {
	case err == nil:
		st := c.Stats()
		c.cfg.Log.InfoContext(ctx, "following etcd", "records", st.Records, "invalid", st.Invalid, "refused", st.Refused, "revision", st.Revision)
	case before == nil:
		c.cfg.Log.WarnContext(ctx, "etcd unavailable, keeping its records", "err", err)
	}
	if err != nil {
		c.failures.Add(1) // after lastError is set: a reader of the new count finds its error
	}
}

func (c *Client) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastError
}

// Stats hold the state of a client.
type Stats struct {
	skydns.Stats

	Revision  int64  `json:"revision"`            // revision of etcd that the records have; 0: none, or they are read again
	Reads     uint64 `json:"reads"`               // complete reads of all keys
	Failures  uint64 `json:"failures"`            // connections, reads and watches that failed
	LastError string `json:"lastError,omitempty"` // why etcd does not answer now; empty: it answers
	Panics    uint64 `json:"panics,omitempty"`    // recovered panics
}

// Stats may be called at any time.
func (c *Client) Stats() Stats {
	st := Stats{Stats: c.cfg.Source.Stats(), Reads: c.reads.Load(), Failures: c.failures.Load(), Panics: c.panics.Load()}
	if records := c.cfg.Source.Records(); records != nil {
		st.Revision = records.Revision.Load()
	}
	if err := c.err(); err != nil {
		st.LastError = err.Error()
	}
	return st
}

// connect returns a client of etcd. It connects with the first request.
func (c *Client) connect(ctx context.Context) (*clientv3.Client, error) {
	cfg := clientv3.Config{
		Context: ctx, Endpoints: c.cfg.Endpoints, DialKeepAliveTime: timeout, DialKeepAliveTimeout: timeout,
		MaxCallRecvMsgSize: maxMessage, DialOptions: []grpc.DialOption{
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)), grpc.WithMaxHeaderListSize(maxHeader),
		},
		Logger: zap.NewNop(),
	}
	if strings.HasPrefix(c.cfg.Endpoints[0], "https:") {
		var err error
		if cfg.TLS, err = c.tlsConfig(); err != nil {
			return nil, err
		}
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	return client, nil
}

// authenticate returns ctx with a token of the user. It sends the request directly: etcd's client waits for a server that is
// down, and returns only an exceeded deadline.
func (c *Client) authenticate(ctx context.Context, conn *grpc.ClientConn) (context.Context, error) {
	if c.cfg.User == "" {
		return ctx, nil
	}
	password, err := os.ReadFile(c.cfg.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("reading the password: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, c.period)
	defer cancel()
	answer, err := etcdserverpb.NewAuthClient(conn).Authenticate(limited, &etcdserverpb.AuthenticateRequest{
		Name: c.cfg.User, Password: strings.TrimRight(string(password), "\r\n"),
	})
	if err != nil && !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled) {
		return nil, fmt.Errorf("authenticating %s: %w", c.cfg.User, err)
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, answer.GetToken()), nil
}

func (c *Client) tlsConfig() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.cfg.ServerName}
	if c.cfg.CA != "" {
		pem, err := os.ReadFile(c.cfg.CA)
		if err != nil {
			return nil, fmt.Errorf("reading the CA certificates: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading the CA certificates: none in %s", c.cfg.CA)
		}
	}
	if c.cfg.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.cfg.Cert, c.cfg.Key)
		if err != nil {
			return nil, fmt.Errorf("reading the client certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
