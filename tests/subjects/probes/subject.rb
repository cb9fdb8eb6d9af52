# Grows by 64 MiB at a mark and gives it back at the next; status 7.
require "strandline"
require "timeout"

# A mark to a closed socket must not end the program by SIGPIPE.
trap("PIPE", "SYSTEM_DEFAULT")

def loop_marks(count)
  count.times { Strandline.mark("quiet") }
end

def forked(count)
  fork do
    loop_marks(count)
    exit!(3)
  end
end

task, argument = ARGV
case task
when "loop"
  loop_marks(100)
  Strandline.mark("before")
  loop_marks(argument.to_i)
  Strandline.mark("after")
  exit!(7)
when "crowd"
  threads = 4.times.map { Thread.new { loop_marks(argument.to_i) } }
  child = forked(argument.to_i)
  threads.each(&:join)
  Process.wait(child)
  ended = $?.exitstatus
  # A timeout comes at any point of a mark; no later mark may hang, here or in a child.
  200.times do
    Timeout.timeout(0.0003) { loop_marks(100) }
  rescue Timeout::Error
    nil
  ensure
    Process.wait(forked(1))
  end
  Strandline.mark("after")
  exit!(ended == 3 ? 7 : 1)
end
Strandline.mark("start")
if task == "reuse"
  file = File.open(argument, File::RDWR | File::CREAT)
  IO.for_fd(ENV["STRANDLINE_MARK_FD"].to_i, autoclose: false).reopen(file)
end
memory = "\1" * (64 << 20)
Strandline.mark("grown")
memory.clear
memory = nil
Strandline.mark("freed")
Strandline.mark("two\nlines\x01")
Strandline.mark("n" * 300)
system("test -e /proc/self/fd/$STRANDLINE_MARK_FD && echo inherited >&2") if task == "inherit"
puts "done"
exit(7)
