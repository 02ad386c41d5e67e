import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Java's Parallel Consumer on one topic: key order, asynchronous commits every second, a handler that does nothing or sleeps.
 * Prints one line of JSON: messages, seconds from the first handled to the last, messages_per_second.
 *
 * Arguments: brokers group topic messages concurrency sleep-in-ms
 */
public final class ParallelConsumerBench {
    private static final long LIMIT_SECONDS = 300;

    public static void main(String[] args) throws Exception {
        String topic = args[2];
        long messages = Long.parseLong(args[3]);
        int concurrency = Integer.parseInt(args[4]);
        long sleepMs = Long.parseLong(args[5]);

        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[0]);
        properties.put("group.id", args[1]);
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());

        ParallelConsumerOptions<byte[], byte[]> options = ParallelConsumerOptions.<byte[], byte[]>builder()
                .consumer(consumer)
                .ordering(ProcessingOrder.KEY)
                .maxConcurrency(concurrency)
                .commitMode(CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS)
                .commitInterval(Duration.ofSeconds(1))
                .build();
        ParallelStreamProcessor<byte[], byte[]> processor = ParallelStreamProcessor.createEosStreamProcessor(options);

        AtomicLong handled = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        processor.subscribe(List.of(topic));
        processor.poll(context -> {
            if (sleepMs > 0) {
                try {
                    Thread.sleep(sleepMs);
                } catch (InterruptedException error) {
                    Thread.currentThread().interrupt();
                    return;
                }
            }
            long count = handled.incrementAndGet();
            if (count == 1) {
                first.set(System.nanoTime());
            } else if (count == messages) {
                last.set(System.nanoTime());
                done.countDown();
            }
        });

        boolean finished = done.await(LIMIT_SECONDS, TimeUnit.SECONDS);
        if (!finished) {
            System.err.printf("only %d of %d messages handled in %d s%n", handled.get(), messages, LIMIT_SECONDS);
            System.exit(1);
        }
        double seconds = (last.get() - first.get()) / 1e9;
        System.out.printf(
                Locale.ROOT,
                "{\"messages\": %d, \"seconds\": %.3f, \"messages_per_second\": %.0f}%n",
                messages, seconds, messages / seconds);
        System.out.flush();
        Runtime.getRuntime().halt(0); // the figure is out, and a drain would only wait for a final commit
    }
}
