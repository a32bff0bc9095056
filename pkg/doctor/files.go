// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/filewatch"
)

// Limits for the files of other processes, which may be hostile.
const (
	maxFile      = 64 << 10        // bytes of a file
	fileTimeout  = time.Second     // time to read one file
	filesTimeout = 5 * time.Second // time to read all files
)

// A fileRequest is a file of another process.
type fileRequest struct {
	Root string `json:"root"` // a folder that stands for /, such as /proc/7/root
	Path string `json:"path"`
}

// content is the result of a fileRequest.
type content struct {
	Missing bool   `json:"missing"` // there is no such file, or no such process
	Text    []byte `json:"text"`
	Device  uint64 `json:"device"` // with Inode: identifies the file
	Inode   uint64 `json:"inode"`
}

// read reads a regular file, with symbolic links resolved within the root. It checks the type before it opens the file,
// because opening a device acts on it. It may block if the other process serves the file system.
func (r *fileRequest) read() (c content, err error) {
	failed := func(err error) (content, error) {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			return content{Missing: true}, nil
		}
		if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
			err = inner.Err
		}
		return content{}, fmt.Errorf("reading %s: %w", r.Path, err)
	}
	root, err := unix.Open(r.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = unix.Close(root) }()
	// The magic links of /proc, such as /proc/1/root, would lead out of the root.
	fd, err := unix.Openat2(root, r.Path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return failed(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var info unix.Stat_t
	var system unix.Statfs_t
	if err := errors.Join(unix.Fstat(fd, &info), unix.Fstatfs(fd, &system)); err != nil {
		return failed(err)
	}
	switch c.Device, c.Inode = info.Dev, info.Ino; {
	case info.Mode&unix.S_IFMT != unix.S_IFREG:
		return failed(errors.New("not a regular file"))
	case info.Size == 0: // also the size of files of /proc, whose reading can block, or consume events
		return c, nil
	case system.Type == unix.SYSFS_MAGIC: // reading a file of sysfs may act on a device
		return failed(errors.New("a file of sysfs"))
	}
	if c.Text, err = filewatch.ReadFile(fmt.Sprintf("/proc/self/fd/%d", fd), maxFile); err != nil {
		return failed(err)
	}
	return c, nil
}

// errSlow is the error of a file whose reading takes longer than fileTimeout.
var errSlow = fmt.Errorf("it takes longer than %s", fileTimeout)

// A readFunc reads the file path below the folder root.
type readFunc func(ctx context.Context, root, path string) (content, error)

// A fileReader reads files in a child, because a process that waits for a file system may not end even when it is killed.
type fileReader struct {
	command []string // argv of the child process, which runs [Serve]; empty: no file is read
	child   *child   // nil: not started yet, or closed after an error
}

// read is a [readFunc]. It takes at most fileTimeout.
func (r *fileReader) read(ctx context.Context, root, path string) (c content, err error) {
	if len(r.command) == 0 {
		return c, errors.New("not requested")
	}
	if r.child == nil {
		if r.child, err = startChild(r.command, nil, nil); err != nil {
			return c, fmt.Errorf("starting a child process: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, fileTimeout)
	defer cancel()
	reply, err := r.child.do(ctx, message{File: &fileRequest{Root: root, Path: path}})
	if ctx.Err() != nil || err != nil && reply.Error == "" {
		r.close()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return c, fmt.Errorf("reading %s: %w", path, errSlow)
	case err != nil:
		return c, err
	case reply.Content == nil:
		return c, fmt.Errorf("reading %s: no reply", path)
	}
	return *reply.Content, nil
}

// close ends the child. It does not wait: the child may be stuck.
func (r *fileReader) close() {
	if r.child != nil {
		r.child.stop()
		r.child = nil
	}
}
