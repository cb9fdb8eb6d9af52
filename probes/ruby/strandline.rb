# strandline: names an instant of a Ruby program for `strandline run`.
#
#     require "/path/to/probes/ruby/strandline"
#     Strandline.mark("cache filled")
#     strandline run -o cache.strandline -- ruby program.rb
#
# Without strandline (no STRANDLINE_MARK_FD in the environment) a mark is a call that returns at once. With
# it, the first mark requires "socket" (C Ruby's own, for MSG_NOSIGNAL); each is a handful of system calls
# and a few short-lived strings plus the time that strandline takes for its sample. Figures: docs/probes.md.
#
# C Ruby 2.5 or later, Linux, no gems. Threads take turns, and so do processes of one tree; the lock of the
# interpreter is not held while a mark waits. It works in the child of a fork, in a trap handler, and where
# Timeout ends it early. A child that spawn starts inherits the descriptor (unless close_others: true).
module Strandline
  NAME_BYTES = 200
  MSG_NOSIGNAL = 0x4000
  MSG_PEEK = 2
  MSG_DONTWAIT = 0x40
  F_SETLKW = 7
  # struct flock of 64-bit Linux; F_WRLCK is 1, F_UNLCK 2.
  TAKE, GIVE = [1, 2].map { |type| [type, 0, 0, 0, 0].pack("s!s!x4q!q!i!x4") }
  private_constant :NAME_BYTES, :MSG_NOSIGNAL, :MSG_PEEK, :MSG_DONTWAIT, :F_SETLKW, :TAKE, :GIVE

  # nil: not looked yet; false: off for ever; else the socket.
  @socket = nil
  @lock = Mutex.new
  @process = Process.pid
  # Answers awaited: one that an exception left behind (Timeout) is read with the next.
  @owed = 0

  # Names this instant; returns nil when strandline has taken its sample. Control characters of the name
  # become spaces; it is cut to 200 bytes. Does nothing where strandline is not there, or is no more.
  def self.mark(name)
    return if @socket == false
    exclusively { mark_now(name) }
    nil
  end

  class << self
    private

    def exclusively
      # A trap handler that interrupts a mark cannot wait for it: its mark is left out.
      return if @lock.owned?
      begin
        @lock.lock
      rescue ThreadError
        # Trap handlers may not wait for other threads.
        return yield
      end
      begin
        yield
      ensure
        @lock.unlock
      end
    end

    def mark_now(name)
      # A fork's child owes nothing.
      @process, @owed = Process.pid, 0 if @process != Process.pid
      @socket = look || false if @socket.nil?
      return unless @socket
      # The descriptor may be another file of the program's by now.
      ours = identity(@fd) == @file
      @socket = false unless ours && talk(line(name))
    rescue Errno::ETIMEDOUT
      # The program's own: no call here can time out.
      raise
    rescue SystemCallError, IOError, LoadError
      @socket = false
    end

    def line(name)
      bytes = name.to_s.b
      bytes = bytes.byteslice(0, NAME_BYTES)
      bytes.tr!("\x00-\x1f\x7f".b, " ")
      bytes << "\n"
    end

    # The socket, where there is a strandline to talk to: the number, above the standard descriptors, of a
    # stream socket of the local kind.
    def look
      value = ENV["STRANDLINE_MARK_FD"].to_s
      return unless value.match?(/\A[0-9]{1,9}\z/) && value.to_i > 2
      @fd = value.to_i
      @file = identity(@fd)
      return unless @file
      require "socket"
      socket = UNIXSocket.for_fd(@fd)
      # It is the program's: never closed by us.
      socket.autoclose = false
      # SOL_SOCKET 1: SO_DOMAIN 39 is AF_UNIX 1, SO_TYPE 3 is SOCK_STREAM 1.
      socket if [39, 3].all? { |option| socket.getsockopt(1, option).int == 1 }
    end

    def identity(fd)
      File.readlink("/proc/self/fd/#{fd}")[/\Asocket:.*/]
    rescue SystemCallError
      nil
    end

    # Writes the line and waits until nothing is owed; false where there is nobody at the other end.
    def talk(line)
      exchange(line)
    ensure
      # Twice: a timeout can come in the first of two, before its first statement.
      begin
        release
      ensure
        release if @locked
      end
    end

    def exchange(line)
      # Processes of one tree share the socket: else one might read the answer that was meant for another.
      @locked = true
      again { @socket.fcntl(F_SETLKW, TAKE) }
      # Sent and counted, looked at, and then counted and taken: no timeout comes in between.
      Thread.handle_interrupt(Object => :never) do
        line = line.byteslice(again { @socket.send(line, MSG_NOSIGNAL) }..-1) until line.empty?
        @owed += 1
      end
      while @owed > 0
        answer = again { @socket.recv(1, MSG_PEEK) }
        return false if answer.nil? || answer.empty?
        Thread.handle_interrupt(Object => :never) do
          @owed -= 1
          again { @socket.recv(1, MSG_DONTWAIT) }
        end
      end
      true
    end

    def release
      @socket.fcntl(F_SETLKW, GIVE) if identity(@fd) == @file
      @locked = false
    end

    def again
      yield
    rescue Errno::EINTR
      retry
    end
  end
end
