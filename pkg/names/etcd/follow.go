// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/nodecache/node-cache/pkg/names/skydns"
	"github.com/nodecache/node-cache/pkg/remote"
)

const pageSize = 1000 // keys in a page; fewer are requested where they exceed maxMessage

var (
	errReadAgain = errors.New("all keys must be read again")
	errSilent    = errors.New("etcd is silent")
	errOrder     = errors.New("keys out of order")
	errOther     = errors.New("another etcd cluster answers")
)

// session connects and follows the records until something fails.
func (c *Client) session(ctx context.Context) error {
	client, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	conn := client.ActiveConnection()
	err = c.keep(ctx, conn)
	if _, remote := status.FromError(err); remote && conn.GetState() != connectivity.Ready {
		return fmt.Errorf("etcd cannot be reached at %s: %w", strings.Join(c.cfg.Endpoints, " or "), err)
	}
	return err
}

// keep reads the records if needed, and follows their changes.
func (c *Client) keep(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, err := c.authenticate(ctx, conn)
	if err != nil {
		return err
	}
	records := c.cfg.Source.Records()
	if records == nil || records.Revision.Load() == 0 {
		if records, err = c.readAll(ctx, conn); err != nil {
			return fmt.Errorf("reading %s: %w", c.cfg.Prefix, err)
		}
		c.reads.Add(1)
		first := c.cfg.Source.Records() == nil
		c.cfg.Source.Use(records)
		if first {
			close(c.read)
		}
	}
	if err := c.follow(ctx, conn, records); err != nil {
		return fmt.Errorf("watching %s: %w", c.cfg.Prefix, err)
	}
	return nil
}

// readAll reads all keys at one revision.
func (c *Client) readAll(ctx context.Context, conn *grpc.ClientConn) (*skydns.Records, error) {
	ctx, cancel := context.WithTimeout(ctx, c.readTime)
	defer cancel()
	records, from, limit := c.cfg.Source.NewRecords(), c.cfg.Prefix, int64(pageSize)
	for {
		page, err := c.readPage(ctx, conn, from, limit, &records.Revision)
		switch {
		case status.Code(err) == codes.ResourceExhausted && limit > 1:
			limit /= 10
			continue
		case err != nil:
			return nil, err
		}
		limit = pageSize
		for _, kv := range page.Kvs {
			if string(kv.Key) < from {
				return nil, errOrder
			}
			records.Put(string(kv.Key), kv.Value, kv.Lease != 0)
			from = string(kv.Key) + "\x00"
		}
		if !page.More || len(page.Kvs) == 0 {
			return records, nil
		}
	}
}

// readPage reads a page of keys at a revision. If revision is 0, it reads the latest one and sets revision to that. It sends the
// request directly: for a server that is down, etcd's client returns only an exceeded deadline.
func (c *Client) readPage(ctx context.Context, conn *grpc.ClientConn, from string, limit int64, revision *atomic.Int64) (*etcdserverpb.RangeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, c.period)
	defer cancel()
	page, err := etcdserverpb.NewKVClient(conn).Range(ctx, &etcdserverpb.RangeRequest{
		Key: []byte(from), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(c.cfg.Prefix)), Limit: limit, Revision: revision.Load(),
	})
	if err != nil {
		return nil, err
	}
	if revision.CompareAndSwap(0, page.GetHeader().GetRevision()) {
		c.cluster = page.GetHeader().GetClusterId()
	}
	if c.isOther(page.GetHeader()) {
		return nil, errOther
	}
	return page, nil
}

// follow applies changes to the records, until the watch fails or all keys must be read again. It uses the protocol
// directly: the watcher of etcd's client queues events without a bound, and does not report that etcd is away.
func (c *Client) follow(ctx context.Context, conn *grpc.ClientConn, records *skydns.Records) error {
	ctx, stop := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	stream, err := etcdserverpb.NewWatchClient(conn).Watch(ctx)
	if err != nil {
		stop(nil)
		return err
	}
	var received atomic.Bool
	var checks sync.WaitGroup
	checks.Go(func() { stop(c.check(ctx, stream, records, &received)) })
	defer checks.Wait()
	defer stop(nil)
	for {
		response, err := stream.Recv()
		if err == nil {
			received.Store(true)
			err = c.apply(ctx, response, records)
		}
		if status.Code(err) == codes.ResourceExhausted || errors.Is(err, errReadAgain) || errors.Is(err, errOther) {
			records.Revision.Store(0) // read all keys again: the next events would fail too, or are lost
		}
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
}

// check begins the watch, and requests its progress each period. It returns if ctx ends, if nothing was received for a period, or if
// refused records have room now. If a request cannot be sent, Recv returns the reason.
func (c *Client) check(ctx context.Context, stream etcdserverpb.Watch_WatchClient, records *skydns.Records, received *atomic.Bool) error {
	_ = stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: &etcdserverpb.WatchCreateRequest{
		Key: []byte(c.cfg.Prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(c.cfg.Prefix)), StartRevision: records.Revision.Load() + 1,
	}}})
	ticker := time.NewTicker(c.period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if !received.Swap(false) {
			return errSilent
		}
		if records.HasRoom() {
			records.Revision.Store(0)
			return errReadAgain
		}
		_ = stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{}})
	}
}

// isOther reports whether the answer comes from another cluster than the records. Revisions of two clusters cannot be compared. An
// etcd proxy omits the ID from some answers.
func (c *Client) isOther(header *etcdserverpb.ResponseHeader) bool {
	return header.GetClusterId() != 0 && header.GetClusterId() != c.cluster
}

// apply applies the events of a response to the records.
func (c *Client) apply(ctx context.Context, response *etcdserverpb.WatchResponse, records *skydns.Records) error {
	switch {
	case c.isOther(response.GetHeader()):
		return errOther
	case response.Canceled:
		return fmt.Errorf("%w: %s", errReadAgain, remote.Text(response.CancelReason))
	case response.GetHeader().GetRevision() < records.Revision.Load():
		return fmt.Errorf("%w: etcd has an older revision", errReadAgain)
	case response.Created:
		c.setError(ctx, nil)
	}
	for _, e := range response.Events {
		kv := e.GetKv()
		if kv.GetModRevision() < records.Revision.Load() {
			return fmt.Errorf("%w: an event has an older revision", errReadAgain)
		}
		if e.GetType() == clientv3.EventTypeDelete {
			records.Delete(string(kv.GetKey()))
		} else {
			records.Put(string(kv.GetKey()), kv.GetValue(), kv.GetLease() != 0)
		}
		records.Revision.Store(kv.GetModRevision())
	}
	return nil
}
